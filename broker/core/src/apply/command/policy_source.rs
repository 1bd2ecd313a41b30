//! Commands about the Git repository that the policy is pulled from.

pub(crate) mod record_pull;
pub(crate) mod remove_policy_source;
pub(crate) mod set_policy_source;
