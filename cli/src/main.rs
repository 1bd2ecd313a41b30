//! `comity`, the command for people.

use std::process::ExitCode;

fn main() -> ExitCode {
    comity_cli::main()
}
