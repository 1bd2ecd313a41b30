//! What is said about the head of a branch.

use std::collections::BTreeSet;
use std::fmt;

use comity_policy::{Bundle, Problem};

use crate::documents::DocumentKey;
use crate::object_id::ObjectId;
use crate::policy_folder::PolicyFolder;
use crate::signer::Signer;

/// Digits of a commit id in messages.
const SHOWN_DIGITS: usize = 12;

/// The verdict about a head.
#[derive(Debug)]
pub enum Verdict {
    /// The head is the commit in force.
    Unchanged,
    /// The head may come into force.
    Accepted(Box<Accepted>),
    /// It may not.
    Refused(Refused),
}

/// A head whose changes all have the signatures that they need.
#[derive(Debug)]
pub struct Accepted {
    /// The head.
    pub commit: ObjectId,
    /// Its bundle.
    pub bundle: Bundle,
    /// Who signed its changes.
    pub signers: BTreeSet<Signer>,
    /// Names that stay taken, as `Cluster/ncc-main`: those of institutions that left the federation.
    pub taken_names: BTreeSet<String>,
    /// Commits since the one in force.
    pub commits: usize,
}

/// Why a head may not come into force. [`Display`](fmt::Display) says it in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The commit to look at.
    pub commit: ObjectId,
    /// What is wrong with it.
    pub reason: Reason,
}

/// What is wrong with a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is older than the commit in force.
    Rollback {
        /// The commit in force.
        in_force: ObjectId,
    },
    /// It does not descend from the commit in force.
    Diverged {
        /// The commit in force.
        in_force: ObjectId,
    },
    /// The history exceeds a bound.
    TooLong {
        /// What there is too much of, with the bound.
        what: String,
    },
    /// The repository lacks the folder.
    NoFolder(PolicyFolder),
    /// Its files are no bundle.
    NoBundle(String),
    /// Its bundle has problems.
    Problems(Vec<Problem>),
    /// Changes lack signatures.
    Unsigned {
        /// The first such changes.
        changes: Vec<UnsignedChange>,
        /// Further ones.
        more: usize,
        /// In another history: the hash that the head's message names as `Replaces:`.
        replaces: Option<String>,
    },
    /// More names stay taken than are remembered.
    TooManyTakenNames,
    /// Nobody could sign a later change.
    LockedOut {
        /// Who, and why.
        who: String,
    },
}

/// A change that lacks a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsignedChange {
    /// The commit that made it.
    pub commit: ObjectId,
    /// The changed document.
    pub document: DocumentKey,
    /// Whose signatures are missing.
    pub missing: String,
    /// What the commit's own signature is worth.
    pub signature: String,
}

impl fmt::Display for UnsignedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (commit, document) = (short(self.commit), &self.document);
        write!(f, "commit {commit} changes {document} without the signature of {}: {}", self.missing, self.signature)
    }
}

impl Reason {
    /// A stable word, for metrics and scripts.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Rollback { .. } => "rollback",
            Self::Diverged { .. } => "diverged",
            Self::TooLong { .. } => "too-long",
            Self::NoFolder(_) | Self::NoBundle(_) | Self::Problems(_) => "invalid",
            Self::Unsigned { .. } => "unsigned",
            Self::TooManyTakenNames => "taken-names",
            Self::LockedOut { .. } => "locked-out",
        }
    }
}

impl Refused {
    /// The document that lacks a signature, if that is the reason.
    #[must_use]
    pub fn document(&self) -> Option<&DocumentKey> {
        match &self.reason {
            Reason::Unsigned { changes, .. } => changes.first().map(|change| &change.document),
            _ => None,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        let commit = self.commit;
        match &self.reason {
            Reason::Rollback { .. } => {
                "push a new commit: `comity policy rollback`, or `git revert` what shall no longer hold, and sign it"
                    .to_owned()
            }
            Reason::Diverged { in_force } => format!(
                "push a branch that contains {in_force} (`git reflog` finds it), and revert by new commits; if the \
                 repository was replaced, set the source again with --new-history"
            ),
            Reason::TooLong { .. } => {
                "push fewer commits at a time, and wait for each push to come into force".to_owned()
            }
            Reason::NoFolder(_) => {
                "commit the policy there, or set the source again with another `--folder`".to_owned()
            }
            Reason::NoBundle(_) | Reason::Problems(_) => {
                "run `comity policy check` on the folder, mend all problems, and push a new commit".to_owned()
            }
            Reason::Unsigned { replaces: Some(hash), .. } => format!(
                "let somebody who may sign for all these changes sign the head: `git commit --allow-empty -S -m Replace \
                 --trailer 'Replaces: {hash}'`; or push the documents in force first, and the changes after that"
            ),
            Reason::Unsigned { .. } => format!(
                "let the owner sign: `git commit --allow-empty -S -m Approve --trailer 'Approves: {commit}'`; or revert \
                 the change"
            ),
            Reason::LockedOut { .. } => {
                "take back the commit that changes these keys (`git reset`, forced push): no later commit mends it. Then \
                 give the keys a later `until`, or name others"
                    .to_owned()
            }
            Reason::TooManyTakenNames => "admit institutions that left again, or give their names to others".to_owned(),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let commit = short(self.commit);
        match &self.reason {
            Reason::Rollback { in_force } => {
                write!(f, "commit {commit} is older than {}, which is in force", short(*in_force))
            }
            Reason::Diverged { in_force } => {
                write!(f, "commit {commit} does not descend from {}, which is in force", short(*in_force))
            }
            Reason::TooLong { what } => write!(f, "commit {commit}: {what}"),
            Reason::NoFolder(folder) => write!(f, "commit {commit} has no folder `{folder}`"),
            Reason::NoBundle(reason) => write!(f, "commit {commit} is no policy: {reason}"),
            Reason::Problems(problems) => {
                write!(f, "the policy of commit {commit} has problems: {}", problems.len())?;
                match problems.first() {
                    Some(first) if first.file.is_empty() => write!(f, ", first: {}", first.message),
                    Some(first) => write!(f, ", first {}:{}: {}", first.file, first.line, first.message),
                    None => Ok(()),
                }
            }
            Reason::Unsigned { changes, more, .. } => {
                for (index, change) in changes.iter().enumerate() {
                    write!(f, "{}{change}", if index == 0 { "" } else { "; " })?;
                }
                if *more > 0 { write!(f, "; and {more} further changes") } else { Ok(()) }
            }
            Reason::LockedOut { who } => write!(f, "after commit {commit} {who}"),
            Reason::TooManyTakenNames => {
                write!(
                    f,
                    "commit {commit}: the names of institutions that left are more than {}",
                    crate::limits::MAX_TAKEN_NAMES
                )
            }
        }
    }
}

/// The first digits of an id, as Git shows it.
fn short(id: ObjectId) -> String {
    id.to_string().chars().take(SHOWN_DIGITS).collect()
}
