//! Join tokens, each shown once.

use std::fs::{File, Permissions};
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;

use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Answer, Sheet};
use crate::session::Session;

/// Who may join with a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Invited {
    /// A cluster.
    Cluster(String),
    /// A user.
    User(String),
    /// A broker.
    Broker(u64),
}

impl Invited {
    /// The command that the other side runs with the token. It is no argument, which other users of a host can read;
    /// `echo` is a builtin of every shell.
    #[must_use]
    pub(crate) fn command(&self, token: &str) -> String {
        let program = match self {
            Self::Cluster(_) => "comity-agent join -",
            Self::User(_) => "comity login -",
            Self::Broker(_) => "comity-broker up --join -",
        };
        format!("echo {token} | {program}")
    }
}

/// What a person gets of an invitation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum InvitationText {
    /// The command to copy.
    #[default]
    Command,
    /// The bare token, for a file or a pipe.
    Token,
}

impl InvitationText {
    /// The command on a terminal, else the token.
    #[must_use]
    pub(crate) fn for_standard_output() -> Self {
        if io::stdout().is_terminal() { Self::Command } else { Self::Token }
    }
}

/// A new invitation with its join token.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewInvitation {
    /// Who may join with it.
    #[serde(flatten)]
    invited: Invited,
    /// The token: a secret, valid for one use.
    token: String,
    /// The command that the other side runs.
    command: String,
    /// When the token expires.
    expires_at_ms: u64,
    #[serde(skip)]
    text: InvitationText,
}

impl NewInvitation {
    /// An invitation, printed for people as `text`.
    #[must_use]
    pub(crate) fn new(invited: Invited, token: String, expires_at_ms: u64, text: InvitationText) -> Self {
        Self { command: invited.command(&token), invited, token, expires_at_ms, text }
    }

    /// Prints it. A file that the shell made for it (`> alice.token`) becomes readable by its owner alone.
    ///
    /// # Errors
    /// [`Failure`] if the file's permissions cannot be changed, or standard output cannot be written.
    pub(crate) fn print(&self, session: &Session) -> Result<(), Failure> {
        keep_from_others(io::stdout()).map_err(|error| {
            Failure::configuration(format!("cannot keep the token's file from other users: {error}"))
                .remedy("write it to a file of yours, or to a pipe")
        })?;
        session.print(self)
    }
}

/// Takes the rights of others from an empty file, before a secret is written to it.
fn keep_from_others(output: impl AsFd) -> io::Result<()> {
    let file = File::from(output.as_fd().try_clone_to_owned()?);
    let found = file.metadata()?;
    if found.is_file() && found.len() == 0 && found.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(())
}

impl Answer for NewInvitation {
    fn table(&self, _now_ms: u64) -> Sheet {
        match self.text {
            InvitationText::Command => self.command.as_str().into(),
            InvitationText::Token => self.token.as_str().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_file_is_kept_from_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let mode = |name: &str, content: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, content).expect("written");
            std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("changed");
            keep_from_others(File::options().append(true).open(&path).expect("opened")).expect("kept");
            std::fs::metadata(&path).expect("there").permissions().mode() & 0o777
        };
        assert_eq!(mode("alice.token", ""), 0o600);
        assert_eq!(mode("install.log", "appended to"), 0o644);
        keep_from_others(io::pipe().expect("a pipe").1).expect("a pipe stays as it is");
    }

    #[test]
    fn terminals_get_a_command_pipes_the_token_and_scripts_both() {
        let invitation = |invited, text| NewInvitation::new(invited, "comity-join-v1.x".to_owned(), 7, text);
        let alice = invitation(Invited::User("alice".to_owned()), InvitationText::Command);
        assert_eq!(alice.table(0).to_string(), "echo comity-join-v1.x | comity login -\n");
        assert_eq!(
            serde_json::to_string(&alice).expect("serialises"),
            r#"{"user":"alice","token":"comity-join-v1.x","command":"echo comity-join-v1.x | comity login -","expiresAtMs":7}"#
        );
        let cluster = Invited::Cluster("ncc-main".to_owned());
        assert_eq!(invitation(cluster.clone(), InvitationText::Token).table(0).to_string(), "comity-join-v1.x\n");
        assert_eq!(cluster.command("t"), "echo t | comity-agent join -");
        assert_eq!(Invited::Broker(4).command("t"), "echo t | comity-broker up --join -");
    }
}
