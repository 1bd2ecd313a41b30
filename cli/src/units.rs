//! Amounts as people write them, read without floating point: what is typed is what is asked for.

mod amount;
mod data;
mod decimal;
mod gpus;
mod members;
mod time;

pub use amount::{parse_cpu_milli, parse_gbits, parse_memory_mib};
pub use data::{DataAmount, parse_data};
pub use gpus::{GpuAmount, parse_gpus};
pub use members::{MemberRange, parse_members};
pub use time::{age, format_duration, parse_duration_ms, parse_moment_ms};
