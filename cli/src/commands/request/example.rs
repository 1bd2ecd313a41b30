//! `comity request example`: a request file to start from.

use clap::Args;

use super::spec_file::FILE_EXAMPLE;
use crate::failure::Failure;
use crate::output::write_stdout;

const EXAMPLE_EXAMPLES: &str = "\
Examples:
  comity request example > request.yaml
  comity request submit -f request.yaml
";

/// `comity request example`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE_EXAMPLES)]
pub struct RequestExampleArgs {}

impl RequestExampleArgs {
    /// Prints the file.
    ///
    /// # Errors
    /// [`Failure`] if standard output cannot be written.
    pub fn run(&self) -> Result<(), Failure> {
        write_stdout(FILE_EXAMPLE)
    }
}
