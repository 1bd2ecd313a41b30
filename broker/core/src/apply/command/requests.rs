//! Commands about requests, from submission to placement.

pub(crate) mod cancel_request;
pub(crate) mod place_requests;
pub(crate) mod submit_request;
