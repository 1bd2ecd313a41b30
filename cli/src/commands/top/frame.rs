//! One frame of `comity top`.

use std::cmp::Reverse;

use serde::Serialize;

use super::super::status::{Observed, WaitingRequest, queue_table, waiting_requests};
use crate::output::{Answer, Column, Sheet, columns};
use crate::units::{age, format_milli};
use crate::views::Lease;

/// Cells of a bar.
const BAR_CELLS: u64 = 20;
const WHOLE_GPU_MILLI: u64 = 1_000;

/// Order of the clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// By cluster and class.
    #[default]
    Name,
    /// Most lent first.
    Lent,
    /// Most free first.
    Free,
}

impl Order {
    /// The order after this one.
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Name => Self::Lent,
            Self::Lent => Self::Free,
            Self::Free => Self::Name,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Name => "by cluster",
            Self::Lent => "most lent first",
            Self::Free => "most free first",
        }
    }
}

/// GPU use, leases and queue at one time.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Frame {
    federation: String,
    use_by_cluster: Vec<GpuUse>,
    leases: Vec<Lease>,
    waiting: Vec<WaitingRequest>,
    #[serde(skip)]
    order: Order,
}

/// Use of one GPU class of one cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct GpuUse {
    cluster: String,
    connected: bool,
    class: Option<String>,
    devices: u32,
    free_milli: u64,
    lent_milli: u64,
    local_milli: u64,
}

impl Frame {
    /// A frame with the clusters in order.
    pub(super) fn new(observed: Observed, order: Order) -> Self {
        let mut use_by_cluster = Vec::new();
        for offer in &observed.offers {
            use_by_cluster.extend(offer.classes.iter().map(|class| GpuUse {
                cluster: offer.cluster.clone(),
                connected: offer.connected,
                class: class.class.clone(),
                devices: class.devices,
                free_milli: class.free_milli,
                lent_milli: class.lent_milli,
                local_milli: class.local_milli,
            }));
        }
        let waiting = waiting_requests(&observed);
        let mut frame =
            Self { federation: observed.federation, use_by_cluster, leases: observed.leases, waiting, order };
        frame.sort(order);
        frame
    }

    /// The order of the clusters.
    pub(super) const fn order(&self) -> Order {
        self.order
    }

    /// Sorts the clusters.
    pub(super) fn sort(&mut self, order: Order) {
        self.order = order;
        self.use_by_cluster.sort_by_key(|it| {
            let first = match order {
                Order::Name => 0,
                Order::Lent => it.lent_milli,
                Order::Free => it.free_milli,
            };
            (Reverse(first), it.cluster.clone(), it.class.clone())
        });
    }

    /// The frame for people.
    pub(super) fn sheet(&self, now_ms: u64) -> Sheet {
        let sum = |of: fn(&GpuUse) -> u64| self.use_by_cluster.iter().map(of).sum::<u64>();
        let devices: u64 = self.use_by_cluster.iter().map(|it| u64::from(it.devices)).sum();
        let title = format!(
            "{}: {devices} GPUs, {} lent, {} local, {} free; {}",
            self.federation,
            format_milli(sum(|it| it.lent_milli)),
            format_milli(sum(|it| it.local_milli)),
            format_milli(sum(|it| it.free_milli)),
            self.order.as_str()
        );
        let mut sheet = Sheet::default().paragraph(title).gap().then(self.use_table());
        if !self.leases.is_empty() {
            sheet = sheet.gap().heading("Leases").then(self.leases_table(now_ms));
        }
        sheet.then(queue_table(&self.waiting, now_ms))
    }

    fn use_table(&self) -> Sheet {
        let row = |it: &GpuUse| {
            vec![
                it.cluster.clone(),
                it.class.clone().unwrap_or_else(|| "(none)".to_owned()),
                if it.connected { "connected" } else { "silent" }.to_owned(),
                bar(it),
                it.devices.to_string(),
                format_milli(it.lent_milli),
                format_milli(it.local_milli),
                format_milli(it.free_milli),
            ]
        };
        let heads = [
            Column::text("cluster"),
            Column::text("class"),
            Column::state("state").rank(1),
            Column::text("lent █ local ▒ free ░").rank(2),
            Column::number("gpus").rank(3),
            Column::number("lent"),
            Column::number("local"),
            Column::number("free"),
        ];
        columns(&heads, self.use_by_cluster.iter().map(row).collect(), "no cluster has an offer yet")
    }

    fn leases_table(&self, now_ms: u64) -> Sheet {
        let row = |lease: &Lease| {
            vec![
                lease.id.clone(),
                lease.tenant.clone(),
                lease.origin.clone(),
                lease.donor.clone().unwrap_or_else(|| "-".to_owned()),
                lease.gpus.summary(),
                lease.state.to_string(),
                age(lease.expiry_ms().unwrap_or(0), now_ms),
            ]
        };
        let heads = [
            Column::text("lease"),
            Column::text("tenant").rank(2),
            Column::text("origin").rank(3),
            Column::text("donor").rank(1),
            Column::text("gpus"),
            Column::state("state"),
            Column::text("expires"),
        ];
        columns(&heads, self.leases.iter().map(row).collect(), "")
    }
}

impl Answer for Frame {
    fn table(&self, now_ms: u64) -> Sheet {
        self.sheet(now_ms)
    }
}

/// Lent, local and free parts of the GPUs. Any part that is not zero has a cell, and blanks stand for unhealthy GPUs.
fn bar(it: &GpuUse) -> String {
    let all = (u64::from(it.devices) * WHOLE_GPU_MILLI).max(1);
    let mut room = BAR_CELLS;
    let mut part = |milli: u64, cell: &str| {
        let cells = (milli * BAR_CELLS / all).max(u64::from(milli > 0)).min(room);
        room -= cells;
        cell.repeat(usize::try_from(cells).unwrap_or(0))
    };
    part(it.lent_milli, "█") + &part(it.local_milli, "▒") + &part(it.free_milli, "░")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu_use(cluster: &str, lent_milli: u64, free_milli: u64) -> GpuUse {
        GpuUse {
            cluster: cluster.to_owned(),
            connected: true,
            class: Some("frontier".to_owned()),
            devices: 8,
            free_milli,
            lent_milli,
            local_milli: 500,
        }
    }

    fn frame() -> Frame {
        Frame {
            federation: "federation.example".to_owned(),
            use_by_cluster: vec![gpu_use("alpha", 2_000, 5_500), gpu_use("beta", 4_000, 3_500)],
            leases: Vec::new(),
            waiting: Vec::new(),
            order: Order::Name,
        }
    }

    #[test]
    fn a_bar_shows_the_parts_and_never_overflows() {
        assert_eq!(bar(&gpu_use("a", 4_000, 3_500)), "██████████▒░░░░░░░░");
        assert_eq!(bar(&gpu_use("a", 8_000, 500)).chars().count(), 20);
    }

    #[test]
    fn clusters_are_sorted_by_the_chosen_order() {
        let mut frame = frame();
        let first = |frame: &Frame| frame.use_by_cluster[0].cluster.clone();
        assert_eq!(first(&frame), "alpha");
        frame.sort(frame.order().next());
        assert_eq!((first(&frame).as_str(), frame.order()), ("beta", Order::Lent));
        frame.sort(frame.order().next());
        assert_eq!(first(&frame), "alpha");
        assert!(frame.sheet(0).to_string().contains("16 GPUs, 6 lent, 1 local, 9 free; most free first"));
    }
}
