//! Fetches a branch with version 2 of Git's protocol.

use comity_provenance::ObjectId;
use http::Method;

use crate::policy_source::https::{Call, GitHost};
use crate::policy_source::packet_lines::{Packet, PacketWriter, Packets};
use crate::policy_source::pull_error::PullError;
use crate::policy_source::repository::Branch;
use crate::policy_source::ssh::SshSession;
use bytes::Bytes;

/// Bytes of a server's capabilities, and of the answer about one branch.
const MAX_ADVERTISEMENT_BYTES: usize = 256 * 1024;
/// Bytes of one fetch. The history of a policy compresses to a few MiB.
pub(super) const MAX_FETCH_BYTES: usize = 64 * 1024 * 1024;
/// Bands of a fetch's answer.
const BAND_PACK: u8 = 1;
const BAND_PROGRESS: u8 = 2;
const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";
const REQUEST: &str = "application/x-git-upload-pack-request";
const NOT_GIT: &str = "check the address: it must be that of `git clone`, of a server with protocol version 2 \
                       (OpenSSH: `AcceptEnv GIT_PROTOCOL`)";

/// A repository behind a server.
pub(super) enum Remote {
    /// Each request is a call of its own.
    Https {
        /// The server.
        server: GitHost,
        /// The repository's path, without a slash at the end.
        path: String,
    },
    /// All requests are in one conversation.
    Ssh(SshSession),
}

impl Remote {
    /// The head of a branch. Comes before all others.
    pub(super) async fn head(&mut self, branch: &Branch) -> Result<ObjectId, PullError> {
        check_version(&self.advertisement().await?)?;
        let full = branch.full();
        let body = PacketWriter::default()
            .line("command=ls-refs")
            .line("object-format=sha1")
            .delimiter()
            .line(&format!("ref-prefix {full}"))
            .end();
        let answer = self.ask(body, MAX_ADVERTISEMENT_BYTES).await?;
        head_in(&answer, &full)?.ok_or_else(|| no_branch(branch))
    }

    /// The pack with a commit and everything before it, but for what `held` commits contain.
    pub(super) async fn pack(&mut self, wanted: ObjectId, held: &[ObjectId]) -> Result<Vec<u8>, PullError> {
        let mut body = PacketWriter::default();
        body.line("command=fetch").line("object-format=sha1").delimiter().line("no-progress").line("ofs-delta");
        body.line(&format!("want {wanted}"));
        for commit in held {
            body.line(&format!("have {commit}"));
        }
        let answer = self.ask(body.line("done").end(), MAX_FETCH_BYTES).await?;
        pack_in(&answer)
    }

    /// What the server can do.
    async fn advertisement(&mut self) -> Result<Bytes, PullError> {
        match self {
            Self::Https { server, path } => {
                let path = format!("{path}/info/refs?service=git-upload-pack");
                let limit = MAX_ADVERTISEMENT_BYTES;
                let call =
                    Call { method: Method::GET, path: &path, media_type: ADVERTISEMENT, body: Vec::new(), limit };
                server.call(call).await
            }
            Self::Ssh(session) => match session.message(MAX_ADVERTISEMENT_BYTES).await {
                // Version 0 lists all references at once.
                Err(error) if error.is_too_long() => Err(PullError::new(error.reason, NOT_GIT)),
                message => message.map(Bytes::from),
            },
        }
    }

    async fn ask(&mut self, body: Vec<u8>, limit: usize) -> Result<Bytes, PullError> {
        match self {
            Self::Https { server, path } => {
                let path = format!("{path}/git-upload-pack");
                server.call(Call { method: Method::POST, path: &path, media_type: REQUEST, body, limit }).await
            }
            Self::Ssh(session) => {
                session.send(body).await?;
                session.message(limit).await.map(Bytes::from)
            }
        }
    }
}

/// The error of a branch that is not there.
pub(super) fn no_branch(branch: &Branch) -> PullError {
    PullError::new(
        format!("the repository has no branch `{branch}`"),
        "push the branch, or set the source again with another `--branch`",
    )
}

fn not_git() -> PullError {
    PullError::new("the server does not answer in Git's protocol", NOT_GIT)
}

fn check_version(advertisement: &[u8]) -> Result<(), PullError> {
    let lines = Packets::new(advertisement).filter_map(|packet| packet.ok()?.line());
    let lines: Vec<&[u8]> = lines.collect();
    if !lines.contains(&&b"version 2"[..]) {
        return Err(not_git());
    }
    let format = lines.iter().find_map(|line| line.strip_prefix(b"object-format="));
    if format.is_some_and(|format| format != b"sha1") {
        let remedy = "keep the policy in a repository with SHA-1 object ids, Git's default";
        return Err(PullError::new("the repository has SHA-256 object ids", remedy));
    }
    Ok(())
}

/// The commit of a branch in the answer to `ls-refs`.
fn head_in(answer: &[u8], full: &str) -> Result<Option<ObjectId>, PullError> {
    for packet in Packets::new(answer) {
        let Some(line) = packet.map_err(|()| not_git())?.line() else { continue };
        let line = std::str::from_utf8(line).map_err(|_| not_git())?;
        if let Some(said) = line.strip_prefix("ERR ") {
            return Err(PullError::saying("the server refuses", &said, NOT_GIT));
        }
        let (id, name) = line.split_once(' ').ok_or_else(not_git)?;
        if name.split(' ').next() == Some(full) {
            return id.parse().map(Some).map_err(|_| not_git());
        }
    }
    Ok(None)
}

/// The pack in the answer to `fetch`.
fn pack_in(answer: &[u8]) -> Result<Vec<u8>, PullError> {
    let mut pack = Vec::new();
    let mut in_pack = false;
    for packet in Packets::new(answer) {
        let packet = packet.map_err(|()| not_git())?;
        let Packet::Data(data) = packet else {
            if in_pack {
                break;
            }
            continue;
        };
        if !in_pack {
            if let Some(said) = data.strip_prefix(b"ERR ") {
                return Err(PullError::saying("the server refuses", &String::from_utf8_lossy(said), NOT_GIT));
            }
            in_pack = packet.line() == Some(b"packfile");
            continue;
        }
        match data.split_first() {
            Some((&BAND_PACK, data)) => pack.extend_from_slice(data),
            Some((&BAND_PROGRESS, _)) => {}
            Some((_, said)) => {
                return Err(PullError::saying("the server fails", &String::from_utf8_lossy(said), NOT_GIT));
            }
            None => return Err(not_git()),
        }
    }
    if pack.is_empty() { Err(not_git()) } else { Ok(pack) }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    const ID: &str = "ce013625030ba8dba906f756967f9e9ca394464a";

    fn packets(contents: &[&[u8]]) -> Vec<u8> {
        let packet = |data: &&[u8]| [format!("{:04x}", data.len() + 4).as_bytes(), data].concat();
        [contents.iter().map(packet).collect::<Vec<_>>().concat(), b"0000".to_vec()].concat()
    }

    #[test]
    fn a_head_is_that_of_the_full_name() {
        let answer = packets(&[
            format!("{ID} refs/heads/main2\n").as_bytes(),
            format!("{ID} refs/heads/main symref-target:refs/heads/other\n").as_bytes(),
        ]);
        assert_eq!(head_in(&answer, "refs/heads/main").unwrap(), Some(ID.parse().unwrap()));
        assert_eq!(head_in(&answer, "refs/heads/mai").unwrap(), None);
        assert!(head_in(&packets(&[b"abc refs/heads/main\n"]), "refs/heads/main").is_err());
        let refused = head_in(&packets(&[b"ERR access \x1b[31mdenied\n"]), "refs/heads/main").unwrap_err();
        assert!(refused.reason.contains("denied") && !refused.reason.contains('\x1b'), "{refused}");
    }

    #[test]
    fn a_pack_comes_in_its_band() {
        let answer = packets(&[b"packfile\n", b"\x02counting\n", b"\x01PACK", b"\x01more"]);
        assert_eq!(pack_in(&answer).unwrap(), b"PACKmore");
        assert!(
            pack_in(&packets(&[b"packfile\n", b"\x03out of memory"])).unwrap_err().reason.contains("out of memory")
        );
        for bad in [packets(&[b"packfile\n"]), packets(&[b"\x01PACK"]), b"000".to_vec()] {
            assert!(pack_in(&bad).is_err());
        }
    }

    #[test]
    fn other_protocols_and_ids_are_refused() {
        let service = b"# service=git-upload-pack\n";
        assert!(check_version(&packets(&[service, b"version 2\n", b"object-format=sha1\n"])).is_ok());
        assert!(check_version(&packets(&[service, format!("{ID} HEAD\n").as_bytes()])).is_err());
        assert!(check_version(b"<!doctype html>").is_err());
        let other = check_version(&packets(&[b"version 2\n", b"object-format=sha256\n"])).unwrap_err();
        assert!(other.reason.contains("SHA-256"));
    }

    #[test]
    fn made_up_answers() {
        let valid =
            vec![packets(&[b"packfile\n", b"\x01PACK"]), packets(&[format!("{ID} refs/heads/main\n").as_bytes()])];
        fuzz!("git_answers", valid, |bytes: &[u8]| {
            let head = head_in(bytes, "refs/heads/main");
            let _ = check_version(bytes);
            pack_in(bytes).is_ok() || matches!(head, Ok(Some(_)))
        });
    }
}
