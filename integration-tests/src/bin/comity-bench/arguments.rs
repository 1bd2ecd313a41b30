//! Arguments that several commands share.

pub(crate) mod report_args;
pub(crate) mod whole;
pub(crate) mod workload;
