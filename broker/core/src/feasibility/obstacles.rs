//! Detailed reasons why a donor cannot serve a request.

pub(crate) mod never_fits;
pub(crate) mod no_start;
pub(crate) mod no_such_profile;
pub(crate) mod not_isolated;
pub(crate) mod not_lent;
pub(crate) mod not_wired;
pub(crate) mod other_gpu_type;
pub(crate) mod unhealthy;
