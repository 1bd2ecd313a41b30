//! What each caller may have of this broker at once, so that no flood keeps others from being served.

pub mod caller_slots;
pub mod long_calls;
pub mod proposal_turns;
pub mod refused_lately;
pub mod report_pace;
