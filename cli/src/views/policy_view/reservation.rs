//! What reservations keep.

use comity_proto::v1;
use serde::Serialize;

use crate::output::Column;
use crate::units::{format_milli, format_time};
use crate::views::list::Row;
use crate::views::value::non_zero;

/// What a reservation keeps at one cluster, in the window that is open or begins next.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// Name of its document.
    pub name: String,
    /// The cluster that keeps the GPUs.
    pub cluster: String,
    /// For whom.
    pub tenant: String,
    /// Their class.
    pub gpu_class: String,
    /// Thousandths of GPUs that it keeps.
    pub gpu_milli: u64,
    /// Begin of the window; none within three months without one.
    pub window_start_ms: Option<u64>,
    /// End of the window, or when what is unused is released.
    pub window_end_ms: Option<u64>,
    /// Whether the window is open.
    pub open: bool,
    /// Thousandths of GPUs of the class that the tenant has at the cluster, up to those that are kept.
    pub used_milli: u64,
    /// While the window is open: thousandths that are kept, and that the tenant does not use.
    pub held_milli: u64,
    /// Thousandths that will be missing, or are.
    pub short_milli: u64,
    /// File of its document.
    pub file: String,
    /// Line in the file.
    pub line: u32,
}

impl From<v1::Reservation> for Reservation {
    fn from(reservation: v1::Reservation) -> Self {
        Self {
            name: reservation.name,
            cluster: reservation.cluster,
            tenant: reservation.tenant,
            gpu_class: reservation.gpu_class,
            gpu_milli: reservation.gpu_milli,
            window_start_ms: non_zero(reservation.window_start_ms),
            window_end_ms: non_zero(reservation.window_end_ms),
            open: reservation.open,
            used_milli: reservation.used_milli,
            held_milli: reservation.held_milli,
            short_milli: reservation.short_milli,
            file: reservation.file,
            line: reservation.line,
        }
    }
}

impl Row for Reservation {
    const HEADS: &'static [Column] = &[
        Column::text("reservation"),
        Column::text("cluster"),
        Column::text("tenant"),
        Column::text("class").rank(2),
        Column::text("gpus"),
        Column::text("from"),
        Column::text("until"),
        Column::text("used"),
        Column::text("held"),
        Column::text("short"),
        Column::text("document").rank(3),
    ];
    const NONE: &'static str = "no reservation is in force";

    fn key(&self) -> &str {
        &self.name
    }

    fn rows(&self, _now_ms: u64) -> Vec<Vec<String>> {
        let time = |at: Option<u64>| at.and_then(format_time).unwrap_or_else(|| "-".to_owned());
        let or_dash = |milli: u64| if milli == 0 { "-".to_owned() } else { format_milli(milli) };
        vec![vec![
            self.name.clone(),
            self.cluster.clone(),
            self.tenant.clone(),
            self.gpu_class.clone(),
            format_milli(self.gpu_milli),
            if self.open { "now".to_owned() } else { time(self.window_start_ms) },
            time(self.window_end_ms),
            or_dash(self.used_milli),
            or_dash(self.held_milli),
            or_dash(self.short_milli),
            format!("{}:{}", self.file, self.line),
        ]]
    }
}
