//! Join tokens, each shown once.

use std::io::IsTerminal as _;

use serde::Serialize;

use crate::output::{Answer, Sheet};

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
        if std::io::stdout().is_terminal() { Self::Command } else { Self::Token }
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
