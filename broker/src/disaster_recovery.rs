//! What a maintainer does after disks were lost, and what brokers note beforehand to make it possible.

pub mod rebuild;
pub mod recover;
pub(crate) mod remember_members;
