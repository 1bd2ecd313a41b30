//! `comity man`: manual pages.

use std::path::PathBuf;

use clap::{Args, CommandFactory as _};

use crate::failure::Failure;
use crate::output::write_stdout;

const MAN_EXAMPLES: &str = "\
Examples:
  comity man | man -l -                        read the page of comity
  comity man ~/.local/share/man/man1           write all pages
";

/// `comity man`.
#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub struct ManArgs {
    /// Directory for the pages of comity, comity-agent and comity-broker [default: print that of comity]
    dir: Option<PathBuf>,
}

impl ManArgs {
    /// Prints one page, that of `comity`, or writes one for each command of each program.
    ///
    /// # Errors
    /// [`Failure`] if a page cannot be written.
    pub fn run(&self, comity: clap::Command) -> Result<(), Failure> {
        let Some(dir) = &self.dir else {
            let mut page = Vec::new();
            let rendered = clap_mangen::Man::new(comity).render(&mut page);
            rendered.map_err(|error| Failure::configuration(format!("cannot write the page: {error}")))?;
            return write_stdout(&String::from_utf8_lossy(&page));
        };
        let unwritten = |error: std::io::Error| {
            Failure::configuration(format!("cannot write the pages: {error}")).field("<DIR>", dir.display())
        };
        std::fs::create_dir_all(dir).map_err(unwritten)?;
        let agent = comity_agent::command_line::CommandLine::command();
        let broker = comity_broker::command_line::CommandLine::command();
        for program in [comity, agent, broker] {
            clap_mangen::generate_to(program, dir).map_err(unwritten)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_and_command_gets_a_page() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        ManArgs { dir: Some(dir.path().join("man1")) }
            .run(crate::help::command(crate::help::Detail::Full))
            .expect("written");
        let page = |name: &str| std::fs::read_to_string(dir.path().join("man1").join(name)).expect(name);
        let submit = page("comity-request-submit.1");
        assert!(submit.contains("numa") && submit.contains("Examples"), "{submit}");
        assert!(page("comity-agent-run.1").contains("fabric"));
        assert!(page("comity-broker-init.1").contains("trust"));
    }
}
