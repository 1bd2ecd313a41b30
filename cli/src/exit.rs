//! The exit codes of `comity`. `comity --help` prints them; scripts rely on them.

use std::process::ExitCode;

/// How a run of `comity` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// The command succeeded.
    Ok,
    /// The broker or a check refused: policy, state, capacity; or the request ended without a lease.
    Refused,
    /// The command line, a request file or a field in it is invalid.
    Usage,
    /// The named object does not exist.
    NotFound,
    /// The caller lacks permission or a valid certificate.
    Permission,
    /// No broker (or agent, or cluster) answered in time.
    Unavailable,
    /// No donor could ever serve the request as things are.
    Unservable,
    /// The configuration cannot be used: identity, broker addresses, kubeconfig.
    Configuration,
    /// `comity run` could not run the command to its end. Programs have few codes above 124, so that scripts tell its
    /// failures from the command's.
    NotRun,
    /// Ctrl-C; by convention of shells, 128 and the number of SIGINT.
    Interrupted,
}

impl Exit {
    /// All exit codes, in the order of the documentation.
    pub const ALL: [Self; 10] = [
        Self::Ok,
        Self::Refused,
        Self::Usage,
        Self::NotFound,
        Self::Permission,
        Self::Unavailable,
        Self::Unservable,
        Self::Configuration,
        Self::NotRun,
        Self::Interrupted,
    ];

    /// The process's exit code.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Refused => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Permission => 4,
            Self::Unavailable => 5,
            Self::Unservable => 6,
            Self::Configuration => 64,
            Self::NotRun => 125,
            Self::Interrupted => 130,
        }
    }

    /// The meaning, as `comity --help` prints it.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "done",
            Self::Refused => "refused by policy, state or capacity; a check failed; or a request ended without a lease",
            Self::Usage => "the command line, a request file or a field in it is invalid",
            Self::NotFound => "the named object does not exist",
            Self::Permission => "not permitted, or no valid certificate",
            Self::Unavailable => "no broker, agent or cluster answered in time; a retry may help",
            Self::Unservable => "no donor could ever serve the request as things are; --queue-anyway queues it",
            Self::Configuration => "bad configuration: identity, broker addresses or kubeconfig",
            Self::NotRun => {
                "comity run could not run the command to its end; otherwise it ends with the command's code"
            }
            Self::Interrupted => {
                "interrupted by Ctrl-C; a submitted request continues, but that of comity run is cancelled"
            }
        }
    }
}

/// How a command ended that did what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Success {
    /// There is nothing more to say.
    Done,
    /// `policy plan --detailed-exitcode` found changes.
    Changes,
    /// The command of `comity run` ended with this code.
    Command(u8),
}

impl From<Success> for ExitCode {
    fn from(success: Success) -> Self {
        match success {
            Success::Done => Exit::Ok.into(),
            // As `terraform plan -detailed-exitcode`; all errors of that command end with 1.
            Success::Changes => Self::from(2),
            Success::Command(code) => Self::from(code),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.number())
    }
}

/// The list of exit codes for `comity --help`.
#[must_use]
pub fn help() -> String {
    let mut text = String::from("Exit codes:\n");
    for exit in Exit::ALL {
        text.push_str(&format!("  {:>3}  {}\n", exit.number(), exit.meaning()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_stable_and_each_is_in_the_help() {
        assert_eq!(Exit::ALL.map(Exit::number), [0, 1, 2, 3, 4, 5, 6, 64, 125, 130]);
        for exit in Exit::ALL {
            assert!(help().contains(&format!("{:>3}  {}", exit.number(), exit.meaning())), "{exit:?}");
        }
    }
}
