//! Parses and formats amounts as people write them, exactly: without floating point.

mod amount;
mod bytes;
mod data;
mod duration_bounds;
mod gpus;
mod members;
mod time;

pub use amount::{format_cpu, format_memory, parse_cpu_milli, parse_gbits, parse_memory_mib};
pub use bytes::{format_bytes, parse_bytes};
/// Formats thousandths of anything: GPUs, cores, credits.
pub use comity_policy::show_gpus as format_milli;
pub use data::{DataAmount, parse_data};
pub use duration_bounds::DurationBounds;
pub use gpus::{GpuAmount, parse_gpus};
pub use members::{MemberRange, parse_members};
pub use time::{age, format_duration, format_time, parse_duration_ms, parse_time_ms};

/// "1 lease" or "3 leases".
#[must_use]
pub fn counted(count: impl TryInto<u64>, one: &str, more: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {one}"),
        count => format!("{count} {more}"),
    }
}
