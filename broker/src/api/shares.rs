//! What each caller may have of this broker at once, so that no flood keeps others from being served.

pub mod call_pace;
pub mod caller_slots;
pub mod caller_turns;
pub mod long_calls;
pub mod refused_lately;
pub mod report_pace;
