//! A program's process: help of its command line, secrets in messages, shutdown by signals, memory.

pub mod help;
pub mod memory;
mod redaction;
pub mod shutdown;

pub use redaction::redact_secrets;
