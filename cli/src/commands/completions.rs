//! `comity completions`: makes a shell complete commands, flags, and ids that the broker knows.

use clap::Args;
use clap_complete::Shell;
use clap_complete::env::Shells;

pub(crate) mod known_ids;

use crate::failure::Failure;
use crate::output::write_stdout;

/// The program that the script calls for candidates.
const PROGRAM: &str = "comity";
/// Set by the script, so that the program answers with candidates instead of running a command.
const REQUEST_VARIABLE: &str = "COMPLETE";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  comity completions bash > ~/.local/share/bash-completion/completions/comity
  comity completions zsh > ~/.zfunc/_comity
  comity completions fish > ~/.config/fish/completions/comity.fish

The shell then asks comity, which asks the broker of --broker or COMITY_BROKER for ids. It waits
at most one second; without an answer it completes commands and flags only.
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
    /// Prints the script that registers `comity` with the shell.
    ///
    /// # Errors
    /// [`Failure`] if standard output cannot be written.
    pub fn run(&self) -> Result<(), Failure> {
        let (mut script, shells) = (Vec::new(), Shells::builtins());
        let failed = |reason: String| Failure::configuration(format!("cannot write the script: {reason}"));
        let shell = shells.completer(&self.shell.to_string()).ok_or_else(|| failed("unknown shell".to_owned()))?;
        shell
            .write_registration(REQUEST_VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)
            .map_err(|error| failed(error.to_string()))?;
        write_stdout(&String::from_utf8_lossy(&script))
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_shell_has_a_script() {
        for shell in Shell::value_variants() {
            assert!(Shells::builtins().completer(&shell.to_string()).is_some(), "{shell}");
        }
    }
}
