//! The broker's process; everything is in the library.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    comity_broker::command_line::main().await
}
