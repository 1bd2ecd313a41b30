//! When schedules are open: phases, and the offsets of time zones.

mod phase;
pub(crate) mod zones;

pub use phase::Phase;
pub use zones::{ZoneRules, Zones};
