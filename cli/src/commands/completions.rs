//! `comity completions`: completion scripts for shells.

use clap::Args;
use clap_complete::Shell;

use crate::failure::Failure;
use crate::output::write_stdout;

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  comity completions bash > ~/.local/share/bash-completion/completions/comity
  comity completions zsh > ~/.zfunc/_comity
  comity completions fish > ~/.config/fish/completions/comity.fish
";

/// `comity completions`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub struct CompletionsArgs {
    /// Shell to complete for
    #[arg(value_enum)]
    shell: Shell,
}

impl CompletionsArgs {
    /// Prints the completion script for `comity`, the whole command line.
    ///
    /// # Errors
    /// [`Failure`] if standard output cannot be written.
    pub fn run(&self, comity: &mut clap::Command) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, comity, "comity", &mut script);
        write_stdout(&String::from_utf8_lossy(&script))
    }
}
