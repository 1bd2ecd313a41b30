//! Asks for a secret on the terminal, without echo.

use std::io::{self, BufRead as _};

use comity_runtime::SecretString;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::output::write_stderr;

/// Reads one line from standard input, a terminal, which does not show it.
///
/// # Errors
/// [`io::Error`] of the terminal.
pub(crate) fn read_secret(question: &str) -> io::Result<SecretString> {
    // The answer counts even if standard error is closed.
    write_stderr(question);
    let mut line = String::new();
    let _silent = Silence::begin()?;
    io::stdin().lock().read_line(&mut line)?;
    write_stderr("\n");
    Ok(SecretString::new(line))
}

/// Turns echo off until it is dropped.
struct Silence(Termios);

impl Silence {
    fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
        Ok(Self(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // There is nobody to report an error to; shells restore the terminal as well.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}
