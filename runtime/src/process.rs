//! A program's process: help of its command line, secrets in messages, shutdown by signals, memory.

pub mod help;
pub mod memory;
mod misplaced_secret;
pub mod shutdown;

pub use misplaced_secret::{MisplacedSecret, misplaced_secret};
