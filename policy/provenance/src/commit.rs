//! Commit objects: tree, parents, signature and the approvals in the message.

use crate::limits::{MAX_APPROVALS, MAX_COMMIT_OBJECT_BYTES, MAX_PARENTS};
use crate::object_id::ObjectId;

/// The trailer with which a signed commit approves an earlier one.
const APPROVES: &str = "approves:";
/// The trailer with which a commit of another history names the bundle that it replaces.
const REPLACES: &str = "replaces:";
/// Headers with signatures: of this repository, and of its twin with SHA-256.
const SIGNATURE_HEADER: &[u8] = b"gpgsig";

/// A parsed commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The folder of the whole repository.
    pub tree: ObjectId,
    /// The commits it follows; several for a merge.
    pub parents: Vec<ObjectId>,
    /// The signature in its armour, if there is one.
    pub signature: Option<Vec<u8>>,
    /// What the signature covers: the object without the header of the signature.
    pub signed: Vec<u8>,
    /// The commits that it approves, by full id.
    pub approves: Vec<ObjectId>,
    /// Hashes of bundles that it replaces.
    pub replaces: Vec<String>,
}

/// Why an object is no commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedCommit {
    /// A header is missing or in another place than Git puts it.
    #[error("a header is missing or misplaced")]
    Headers,
    /// A header is there twice.
    #[error("it has two signatures")]
    TwoSignatures,
    /// It exceeds a bound.
    #[error("it has more than {MAX_COMMIT_OBJECT_BYTES} bytes, {MAX_PARENTS} parents or {MAX_APPROVALS} approvals")]
    TooLarge,
}

impl Commit {
    /// Parses the content of a commit object.
    ///
    /// # Errors
    /// [`MalformedCommit`].
    pub fn parse(content: &[u8]) -> Result<Self, MalformedCommit> {
        if content.len() > MAX_COMMIT_OBJECT_BYTES {
            return Err(MalformedCommit::TooLarge);
        }
        let (mut headers, message) = headers_of(content).ok_or(MalformedCommit::Headers)?;
        headers.reverse();
        let mut next = |name: &str| {
            let header = headers.pop_if(|header| header.name == name.as_bytes())?;
            (header.extra.is_empty()).then_some(header.value)
        };
        let tree = next("tree").and_then(id).ok_or(MalformedCommit::Headers)?;
        let mut parents = Vec::new();
        while let Some(parent) = next("parent") {
            if parents.len() == MAX_PARENTS {
                return Err(MalformedCommit::TooLarge);
            }
            parents.push(id(parent).ok_or(MalformedCommit::Headers)?);
        }
        next("author").ok_or(MalformedCommit::Headers)?;
        next("committer").ok_or(MalformedCommit::Headers)?;
        let misplaced: [&[u8]; 4] = [b"tree", b"parent", b"author", b"committer"];
        if headers.iter().any(|header| misplaced.contains(&header.name)) {
            return Err(MalformedCommit::Headers);
        }
        let mut signature = None;
        let mut signed = content.to_vec();
        for header in headers.iter().filter(|header| header.name.starts_with(SIGNATURE_HEADER)) {
            // A second signature, or one of the twin with SHA-256, would be part of what the first one covers for some
            // readers, and not for others.
            if signature.is_some() || header.name != SIGNATURE_HEADER {
                return Err(MalformedCommit::TwoSignatures);
            }
            signature = Some(header.unfolded());
            signed.drain(header.start..header.end);
        }
        // An abbreviated id approves nothing: it may come to mean another commit.
        let approves = trailers(message, APPROVES)?.iter().filter_map(|id| id.parse().ok()).collect();
        let replaces = trailers(message, REPLACES)?;
        Ok(Self { tree, parents, signature, signed, approves, replaces })
    }

    /// Whether it joins branches.
    #[must_use]
    pub fn is_merge(&self) -> bool {
        self.parents.len() > 1
    }
}

/// One header, with the lines that continue it.
struct Header<'c> {
    name: &'c [u8],
    value: &'c [u8],
    /// Continuation lines, without the blank that marks them.
    extra: Vec<&'c [u8]>,
    /// Where it begins and ends in the object.
    start: usize,
    end: usize,
}

impl Header<'_> {
    /// The value over all lines.
    fn unfolded(&self) -> Vec<u8> {
        let mut whole = self.value.to_vec();
        for line in &self.extra {
            whole.push(b'\n');
            whole.extend_from_slice(line);
        }
        whole
    }
}

/// The headers and the message; `None` if an empty line does not end the headers.
fn headers_of(content: &[u8]) -> Option<(Vec<Header<'_>>, &[u8])> {
    let mut headers: Vec<Header<'_>> = Vec::new();
    let mut start = 0;
    loop {
        let rest = content.get(start..)?;
        let length = rest.iter().position(|byte| *byte == b'\n')?;
        let (line, end) = (&rest[..length], start + length + 1);
        if line.is_empty() {
            return Some((headers, content.get(end..).unwrap_or_default()));
        }
        if let Some(continued) = line.strip_prefix(b" ") {
            let header = headers.last_mut()?;
            header.extra.push(continued);
            header.end = end;
        } else {
            let blank = line.iter().position(|byte| *byte == b' ')?;
            headers.push(Header { name: &line[..blank], value: &line[blank + 1..], extra: Vec::new(), start, end });
        }
        start = end;
    }
}

fn id(hex: &[u8]) -> Option<ObjectId> {
    std::str::from_utf8(hex).ok()?.parse().ok()
}

/// The values of trailers of one name in the message's last paragraph.
fn trailers(message: &[u8], name: &str) -> Result<Vec<String>, MalformedCommit> {
    let message = String::from_utf8_lossy(message);
    let last = message.trim_end().rsplit("\n\n").next().unwrap_or_default();
    let mut values = Vec::new();
    for line in last.lines() {
        let Some((found, value)) = line.split_at_checked(name.len()) else { continue };
        if !found.eq_ignore_ascii_case(name) {
            continue;
        }
        if values.len() == MAX_APPROVALS {
            return Err(MalformedCommit::TooLarge);
        }
        values.push(value.trim().to_owned());
    }
    Ok(values)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use comity_fuzz::fuzz;

    const TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
    const PARENT: &str = "ce013625030ba8dba906f756967f9e9ca394464a";

    fn commit(headers: &str, message: &str) -> String {
        format!("tree {TREE}\nparent {PARENT}\nauthor A <a@x> 1 +0000\ncommitter A <a@x> 1 +0000\n{headers}\n{message}")
    }

    #[test]
    fn the_signature_covers_everything_but_itself() {
        let armour = "gpgsig -----BEGIN SSH SIGNATURE-----\n AAAA\n -----END SSH SIGNATURE-----\n";
        let signed = commit(&format!("{armour}encoding UTF-8\n"), "change\n");
        let parsed = Commit::parse(signed.as_bytes()).unwrap();
        let expected = "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----";
        assert_eq!(parsed.signature.as_deref(), Some(expected.as_bytes()));
        assert_eq!(parsed.signed, commit("encoding UTF-8\n", "change\n").as_bytes());
        assert_eq!(parsed.parents, [PARENT.parse().unwrap()]);
    }

    #[test]
    fn approvals_are_trailers_with_full_ids() {
        let approves = |message: &str| Commit::parse(commit("", message).as_bytes()).unwrap().approves;
        let id: ObjectId = PARENT.parse().unwrap();
        assert_eq!(approves(&format!("ok\n\nApproves: {PARENT}\n")), [id]);
        assert_eq!(approves(&format!("ok\n\napproves:{PARENT}\nSigned-off-by: A\n\n")), [id]);
        assert_eq!(approves(&format!("ok\n\nApproves: {}\n", &PARENT[..12])), []);
        assert_eq!(approves(&format!("ok\n\nApproves: {PARENT}\n\nno: it does not\n")), []);
        assert_eq!(approves(&format!("quotes\n\n> Approves: {PARENT}\n")), []);
    }

    #[test]
    fn ambiguous_objects_are_no_commits() {
        let parse = |text: String| Commit::parse(text.as_bytes()).map(|_| ());
        let signature = "gpgsig A\n B\n";
        assert_eq!(parse(commit(&signature.repeat(2), "")), Err(MalformedCommit::TwoSignatures));
        assert_eq!(parse(commit(&format!("{signature}gpgsig-sha256 A\n"), "")), Err(MalformedCommit::TwoSignatures));
        for late in ["tree", "parent"] {
            assert_eq!(parse(commit(&format!("{late} {TREE}\n"), "")), Err(MalformedCommit::Headers));
        }
        assert_eq!(parse(format!("tree {TREE}\n\nmessage")), Err(MalformedCommit::Headers));
        assert_eq!(parse(format!("tree {TREE}")), Err(MalformedCommit::Headers));
        let many = format!("parent {PARENT}\n").repeat(MAX_PARENTS);
        let text = commit("", "").replacen("author", &format!("{many}author"), 1);
        assert_eq!(parse(text), Err(MalformedCommit::TooLarge));
        let approvals = format!("Approves: {PARENT}\n").repeat(MAX_APPROVALS + 1);
        assert_eq!(parse(commit("", &approvals)), Err(MalformedCommit::TooLarge));
    }

    #[test]
    fn made_up_commits() {
        let signed = commit("gpgsig -----BEGIN SSH SIGNATURE-----\n AAAA\n", &format!("x\n\nApproves: {PARENT}\n"));
        let valid = vec![commit("", "x\n").into_bytes(), signed.into_bytes()];
        fuzz!("commit_objects", valid, |bytes: &[u8]| Commit::parse(bytes).is_ok());
    }
}
