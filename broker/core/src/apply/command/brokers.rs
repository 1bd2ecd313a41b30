//! Commands about the broker group itself.

pub(crate) mod admit_broker;
pub(crate) mod assign_broker;
pub(crate) mod begin_term;
pub(crate) mod rebase_time;
pub(crate) mod record_audit_export;
pub(crate) mod recover_group;
