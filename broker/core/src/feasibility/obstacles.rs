//! Reasons why a donor cannot serve a request.

pub(crate) mod never;
pub(crate) mod no_start;
pub(crate) mod unwell;
pub(crate) mod wishes;
