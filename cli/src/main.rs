//! The `comity` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    comity_cli::main()
}
