//! The answer of `comity status`.

use std::collections::BTreeMap;

use comity_types::LeaseState;
use serde::Serialize;

use super::super::whoami::CallerRights;
use super::advice::{Advice, SOON_MS, advice};
use super::group_health::GroupHealth;
use super::observed::Observed;
use crate::output::{Answer, Column, Sheet, columns, fields};
use crate::units::{age, counted, format_milli};
use crate::views::{ClassSummary, Lease, QueuePosition, Request};

/// The federation on one screen.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Overview {
    /// Trust domain.
    federation: String,
    /// Version of the broker that answered.
    broker_version: String,
    /// The caller.
    caller: CallerRights,
    /// The broker group.
    brokers: GroupHealth,
    /// Connected clusters among those that the caller may see.
    clusters: ClusterCount,
    /// GPUs of all offers, by class.
    gpus: Vec<ClassSummary>,
    /// Leases that have not ended.
    leases: Vec<LeaseLine>,
    /// Waiting requests.
    waiting: Vec<WaitingRequest>,
    /// What needs attention.
    attention: Vec<Advice>,
}

/// Connected clusters.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterCount {
    connected: usize,
    total: usize,
    /// Clusters of which the caller sees the offer alone.
    others_with_offers: usize,
}

impl ClusterCount {
    fn of(observed: &Observed) -> Self {
        let is_listed = |id: &str| observed.clusters.iter().any(|cluster| cluster.id == id);
        Self {
            connected: observed.clusters.iter().filter(|cluster| cluster.connected).count(),
            total: observed.clusters.iter().filter(|cluster| cluster.is_member()).count(),
            others_with_offers: observed.offers.iter().filter(|offer| !is_listed(&offer.cluster)).count(),
        }
    }

    fn text(&self) -> String {
        let Self { connected, total, others_with_offers } = self;
        match others_with_offers {
            0 => format!("{connected} of {total} connected"),
            1 => format!("{connected} of {total} connected, and the offer of another one"),
            others => format!("{connected} of {total} connected, and the offers of {others} others"),
        }
    }
}

/// A lease, in short.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LeaseLine {
    id: String,
    tenant: String,
    donor: Option<String>,
    gpus: String,
    state: String,
    expires_at_ms: Option<u64>,
    /// Whether it ends within half an hour.
    ends_soon: bool,
}

/// A request that waits, in short.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::commands) struct WaitingRequest {
    id: String,
    tenant: String,
    gpus: String,
    submitted_at_ms: Option<u64>,
    /// Its queue position; none if it was not read.
    position: Option<QueuePosition>,
    message: Option<String>,
}

impl Overview {
    /// Sums up the lists.
    pub(super) fn new(observed: Observed, group: GroupHealth, now_ms: u64) -> Self {
        Self {
            attention: advice(&observed, &group, now_ms),
            clusters: ClusterCount::of(&observed),
            gpus: by_class(&observed),
            leases: observed.leases.iter().map(|lease| LeaseLine::new(lease, now_ms)).collect(),
            waiting: waiting_requests(&observed),
            federation: observed.federation,
            broker_version: observed.broker_version,
            caller: observed.caller,
            brokers: group,
        }
    }

    fn leases_text(&self) -> String {
        let active = self.leases.iter().filter(|lease| lease.state == LeaseState::Active.to_string()).count();
        let soon = self.leases.iter().filter(|lease| lease.ends_soon).count();
        format!("{active} of {} active, {soon} ending within 30 minutes", self.leases.len())
    }
}

impl LeaseLine {
    fn new(lease: &Lease, now_ms: u64) -> Self {
        Self {
            id: lease.id.clone(),
            tenant: lease.tenant.clone(),
            donor: lease.donor.clone(),
            gpus: lease.gpus.summary(),
            state: lease.state.to_string(),
            expires_at_ms: lease.expiry_ms(),
            ends_soon: lease.expiry_ms().is_some_and(|at| at < now_ms + SOON_MS),
        }
    }
}

/// Sums over the offers, by class.
fn by_class(observed: &Observed) -> Vec<ClassSummary> {
    let mut sums: BTreeMap<Option<String>, ClassSummary> = BTreeMap::new();
    for class in observed.offers.iter().flat_map(|offer| &offer.classes) {
        match sums.get_mut(&class.class) {
            None => {
                sums.insert(class.class.clone(), class.clone());
            }
            Some(sum) => {
                sum.devices += class.devices;
                sum.free_milli += class.free_milli;
                sum.lent_milli += class.lent_milli;
                sum.local_milli += class.local_milli;
                sum.unhealthy += class.unhealthy;
            }
        }
    }
    sums.into_values().collect()
}

/// The waiting requests with their positions.
pub(in crate::commands) fn waiting_requests(observed: &Observed) -> Vec<WaitingRequest> {
    let line = |request: &Request| {
        let id = request.id.clone().unwrap_or_default();
        WaitingRequest {
            position: observed.positions.get(&id).cloned(),
            id,
            tenant: request.spec.tenant.clone(),
            gpus: request.spec.gpus_summary(),
            submitted_at_ms: request.submitted_at_ms,
            message: request.message.clone(),
        }
    };
    observed.waiting.iter().map(line).collect()
}

/// A row per waiting request; empty if none waits.
pub(in crate::commands) fn queue_table(waiting: &[WaitingRequest], now_ms: u64) -> Sheet {
    if waiting.is_empty() {
        return Sheet::default();
    }
    let row = |request: &WaitingRequest| {
        let position = request.position.as_ref();
        let place = position.filter(|position| position.place > 0);
        vec![
            request.id.clone(),
            request.tenant.clone(),
            request.gpus.clone(),
            place.map_or_else(|| "-".to_owned(), |position| format!("{} of {}", position.place, position.waiting)),
            age(position.and_then(|position| position.earliest_ms).unwrap_or(0), now_ms),
            age(request.submitted_at_ms.unwrap_or(0), now_ms),
            request.message.clone().unwrap_or_default(),
        ]
    };
    let heads = [
        Column::text("request"),
        Column::text("tenant").rank(3),
        Column::text("gpus"),
        Column::text("position"),
        Column::text("earliest").rank(1),
        Column::text("submitted").rank(2),
        Column::message("message").rank(4),
    ];
    Sheet::default().gap().heading("Waiting requests").then(columns(&heads, waiting.iter().map(row).collect(), ""))
}

impl Overview {
    fn gpus_table(&self) -> Sheet {
        let row = |class: &ClassSummary| {
            vec![
                class.class.clone().unwrap_or_else(|| "(none)".to_owned()),
                class.devices.to_string(),
                format_milli(class.free_milli),
                format_milli(class.lent_milli),
                format_milli(class.local_milli),
                class.unhealthy.to_string(),
            ]
        };
        let heads = [
            Column::text("class"),
            Column::number("devices"),
            Column::number("free"),
            Column::number("lent"),
            Column::number("local"),
            Column::number("unhealthy").rank(1),
        ];
        columns(&heads, self.gpus.iter().map(row).collect(), "no cluster has an offer yet")
    }

    fn leases_table(&self, now_ms: u64) -> Sheet {
        if self.leases.is_empty() {
            return Sheet::default();
        }
        let row = |lease: &LeaseLine| {
            vec![
                lease.id.clone(),
                lease.tenant.clone(),
                lease.donor.clone().unwrap_or_else(|| "-".to_owned()),
                lease.gpus.clone(),
                lease.state.clone(),
                age(lease.expires_at_ms.unwrap_or(0), now_ms),
            ]
        };
        let heads = [
            Column::text("lease"),
            Column::text("tenant").rank(2),
            Column::text("donor").rank(1),
            Column::text("gpus"),
            Column::state("state"),
            Column::text("expires"),
        ];
        Sheet::default().gap().heading("Leases").then(columns(&heads, self.leases.iter().map(row).collect(), ""))
    }
}

impl Answer for Overview {
    fn table(&self, now_ms: u64) -> Sheet {
        let head = fields(&[
            ("Federation", format!("{}, broker {}", self.federation, self.broker_version)),
            ("You", self.caller.id.clone()),
            ("Brokers", self.brokers.text()),
            ("Clusters", self.clusters.text()),
            ("Leases", self.leases_text()),
            ("Waiting", counted(self.waiting.len(), "request", "requests")),
        ]);
        let mut sheet = head;
        if self.caller.may_read() {
            let gpus = Sheet::default().gap().heading("GPUs").then(self.gpus_table());
            sheet = sheet.then(gpus).then(self.leases_table(now_ms)).then(queue_table(&self.waiting, now_ms));
        }
        if !self.attention.is_empty() {
            sheet = sheet.gap().heading("Needs attention");
            for advice in &self.attention {
                sheet = sheet.paragraph(format!("{}: {}", advice.text, advice.command));
            }
        }
        sheet
    }
}

#[cfg(test)]
mod tests {
    use comity_proto::v1;

    use super::super::super::whoami::tests::alice;
    use super::*;
    use crate::output::{Page, text};

    const HOUR: u64 = 3_600_000;

    fn offer(cluster: &str, free: u64, lent: u64) -> v1::OfferSummary {
        let class = v1::ClassSummary {
            class: "frontier".to_owned(),
            devices: 8,
            free_milli: free,
            lent_milli: lent,
            local_milli: 500,
            unhealthy: 1,
        };
        v1::OfferSummary {
            cluster: cluster.to_owned(),
            connected: true,
            classes: vec![class],
            ..v1::OfferSummary::default()
        }
    }

    fn lease(id: &str, expires_at_ms: u64) -> v1::Lease {
        v1::Lease {
            id: id.to_owned(),
            tenant: "poly-ml".to_owned(),
            state: v1::LeaseState::Active.into(),
            expires_at_ms,
            ..v1::Lease::default()
        }
    }

    fn overview() -> Overview {
        let request = v1::Request {
            id: "req-9".to_owned(),
            state: v1::RequestState::Queued.into(),
            message: "no donor has three free GPUs of class frontier on one node".to_owned(),
            ..v1::Request::default()
        };
        let position = v1::QueuePosition { place: 2, waiting: 5, earliest_ms: 2 * HOUR, ..Default::default() };
        let cluster = |id: &str, connected| v1::Cluster { id: id.to_owned(), connected, ..Default::default() };
        let observed = Observed {
            federation: "federation.example".to_owned(),
            broker_version: "0.1.0".to_owned(),
            caller: alice(),
            clusters: vec![cluster("polytech-campus", true).into(), cluster("startup-pc", false).into()],
            offers: vec![offer("ncc-main", 3_000, 2_000).into(), offer("startup-pc", 1_000, 0).into()],
            leases: vec![lease("lease-7", HOUR).into(), lease("lease-8", 10 * HOUR).into()],
            waiting: vec![request.into()],
            positions: BTreeMap::from([("req-9".to_owned(), position.into())]),
        };
        let group =
            GroupHealth { visible: true, leader: Some(2), members: 3, silent: vec!["c.example.org:7443".to_owned()] };
        Overview::new(observed, group, HOUR - 60_000)
    }

    #[test]
    fn one_screen_sums_up_and_names_the_next_commands() {
        let overview = overview();
        let sheet = overview.table(HOUR - 60_000);
        let text = sheet.to_string();
        for part in [
            "2 of 3 answer, broker 2 leads",
            "1 of 2 connected, and the offer of another one",
            "2 of 2 active, 1 ending within 30 minutes",
            "frontier       16     4     2      1          2",
            "2 of 5",
            "comity raft status",
            "comity cluster show startup-pc",
            "comity lease renew lease-7",
            "comity offers ncc-main",
            "comity request explain req-9",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert!(!text.contains("lease renew lease-8"), "{text}");
        for width in [60, 80, 120] {
            let long = sheet.lines(Page::of_width(width)).into_iter().find(|line| text::width(line) > width);
            assert_eq!(long, None, "{width}");
        }
    }

    #[test]
    fn scripts_get_the_same_in_one_object() {
        let json = serde_json::to_value(overview()).expect("serialises");
        assert_eq!(json["brokers"]["leader"], 2);
        assert_eq!(json["clusters"]["connected"], 1);
        assert_eq!(json["gpus"][0]["freeMilli"], 4_000);
        assert_eq!(json["leases"][0]["endsSoon"], true);
        assert_eq!(json["waiting"][0]["position"]["place"], 2);
        assert_eq!(json["attention"][0]["command"], "comity raft status");
    }
}
