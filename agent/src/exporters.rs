//! Exporters: programs that serve metrics over HTTP, one on each node, all behind one DNS name.

mod exporter_endpoint;
mod exporter_pages;
pub(crate) mod metrics_text;

pub use exporter_endpoint::ExporterEndpoint;
pub(crate) use exporter_pages::{ExporterReader, Pages};
