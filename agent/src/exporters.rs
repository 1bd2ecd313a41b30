//! Exporters: programs that serve metrics over HTTP, one on each node, all behind one DNS name.
//!
//! A cluster may have thousands, so each page is used as it comes, and only the lines of the wanted metrics are kept until
//! then.

mod exporter_endpoint;
mod exporter_reader;
#[cfg(test)]
mod fuzz_pages;
mod kept_lines;
pub(crate) mod metrics_text;

pub use exporter_endpoint::ExporterEndpoint;
pub(crate) use exporter_reader::{ExporterReader, Failures};
