//! Recovery after lost disks: the commands `rebuild` and `recover`, and the member list that they need.

pub mod rebuild;
pub mod recover;
pub(crate) mod remember_members;
