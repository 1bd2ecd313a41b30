//! When schedules are open, and calendar periods: phases, periods, and the offsets of time zones.

pub(crate) mod period;
mod phase;
pub(crate) mod zones;

pub use period::{CalendarPeriod, TimeSpan};
pub use phase::Phase;
pub use zones::{ZoneRules, Zones};
