//! A shell that runs the commands of one page.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Limit of one command.
const PATIENCE: Duration = Duration::from_secs(120);
/// Ends the output of a command; the exit code follows.
const END: &str = "--- end of the command ";

/// A running shell. It ends with this value, and so do its background commands.
#[derive(Debug)]
pub struct Shell {
    process: Child,
    input: ChildStdin,
    output: Receiver<String>,
}

impl Shell {
    /// Starts a shell by `command` in a folder, with `programs`, folders separated by colons, first in its path.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(command: &[String], folder: &Path, programs: &str, home: &Path) -> Result<Self> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut process = Command::new("setsid")
            .args(command)
            .current_dir(folder)
            .env_clear()
            .env("PATH", format!("{programs}:{path}"))
            .env("HOME", home)
            .env("LANG", "C.UTF-8")
            .env("COLUMNS", "120")
            .env("NO_COLOR", "1")
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", command.join(" ")))?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { bail!("the shell has no pipes") };
        let (lines, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { process, input, output: receiver })
    }

    /// Runs a command; returns its output, of both streams, and its exit code.
    ///
    /// # Errors
    /// If it takes longer than two minutes, or ends the shell.
    pub fn run(&mut self, command: &str) -> Result<(Vec<String>, i32)> {
        writeln!(self.input, "{{ {command}\n}} 2>&1 </dev/null; printf '\\n{END}%s\\n' $?")?;
        self.input.flush()?;
        let until = Instant::now() + PATIENCE;
        let mut lines = Vec::new();
        loop {
            let line = self.next_line(until).with_context(|| format!("`{command}` printed {lines:?}"))?;
            if let Some(code) = line.strip_prefix(END) {
                // The line break before the end mark.
                if lines.last().is_some_and(String::is_empty) {
                    lines.pop();
                }
                return Ok((lines, code.parse()?));
            }
            lines.push(line);
        }
    }

    /// Starts a command in the background, with its output in a file.
    ///
    /// # Errors
    /// If the shell has ended.
    pub fn start_in_background(&mut self, command: &str, output: &Path) -> Result<()> {
        writeln!(self.input, "{{ {command}\n}} >{} 2>&1 </dev/null &", output.display())?;
        Ok(self.input.flush()?)
    }

    fn next_line(&self, until: Instant) -> Result<String> {
        match self.output.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("no end within {} s", PATIENCE.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("the shell ended"),
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The shell leads a process group of its own.
        _ = Command::new("kill").args(["-TERM", "--", &format!("-{}", self.process.id())]).status();
        _ = self.process.wait();
    }
}
