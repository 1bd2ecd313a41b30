//! Git bundles: a list of branches, and a pack, as `git bundle create` writes them.

use comity_provenance::ObjectId;

use crate::policy_source::pull_error::PullError;
use crate::policy_source::repository::Branch;

/// Media type of a layer that is one.
pub(super) const GIT_BUNDLE: &str = "application/vnd.comity.policy.v1.git-bundle";
/// Bytes before the pack: some hundred branches.
const MAX_LIST_BYTES: usize = 64 * 1024;
const BUNDLE_REMEDY: &str =
    "push the whole branch again with `comity policy push`, or a file of `git bundle create FILE BRANCH`";

/// The commits of a branch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GitBundle<'b> {
    pub(super) head: ObjectId,
    pub(super) pack: &'b [u8],
}

impl<'b> GitBundle<'b> {
    pub(super) fn parse(bytes: &'b [u8], branch: &Branch) -> Result<Self, PullError> {
        let broken = |why: &str| PullError::new(format!("the Git bundle {why}"), BUNDLE_REMEDY);
        let bounded = bytes.get(..MAX_LIST_BYTES).unwrap_or(bytes);
        let end = bounded.windows(2).position(|two| two == b"\n\n");
        let end = end.ok_or_else(|| broken(&format!("has no end of its list within {MAX_LIST_BYTES} bytes")))?;
        let (header, pack) = (&bytes[..end], &bytes[end + 2..]);
        let header = std::str::from_utf8(header).map_err(|_| broken("has a list that is no text"))?;
        let mut lines = header.lines();
        let version = lines.next().unwrap_or_default();
        if !matches!(version, "# v2 git bundle" | "# v3 git bundle") {
            return Err(broken("has an unknown version"));
        }
        let full = branch.full();
        let mut head = None;
        for line in lines {
            if let Some(capability) = line.strip_prefix('@') {
                // Anything else changes what the pack is, such as a filter.
                if capability != "object-format=sha1" {
                    return Err(PullError::saying("the Git bundle needs", &capability, BUNDLE_REMEDY));
                }
            } else if line.starts_with('-') {
                return Err(broken("leaves out commits"));
            } else {
                let (id, name) = line.split_once(' ').ok_or_else(|| broken("has a list that cannot be read"))?;
                if name == full {
                    head =
                        Some(id.parse().map_err(|error| PullError::saying("the Git bundle", &error, BUNDLE_REMEDY))?);
                }
            }
        }
        let head = head.ok_or_else(|| {
            let remedy = "push the branch, or set the source again with another `--branch`";
            PullError::new(format!("the Git bundle has no branch `{branch}`"), remedy)
        })?;
        Ok(Self { head, pack })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    const ID: &str = "ce013625030ba8dba906f756967f9e9ca394464a";

    fn bundle(lines: &str) -> Vec<u8> {
        format!("{lines}\n\nPACKed").into_bytes()
    }

    #[test]
    fn the_head_is_that_of_the_branch() {
        let main = Branch::parse("main").unwrap();
        for version in ["# v2 git bundle", "# v3 git bundle\n@object-format=sha1"] {
            let other = "0".repeat(40);
            let bytes = bundle(&format!("{version}\n{other} HEAD\n{ID} refs/heads/main\n{other} refs/heads/main2"));
            let parsed = GitBundle::parse(&bytes, &main).unwrap();
            assert_eq!((parsed.head, parsed.pack), (ID.parse().unwrap(), &b"PACKed"[..]));
        }
        for (lines, why) in [
            (format!("# v2 git bundle\n{ID} refs/heads/other"), "no branch `main`"),
            (format!("# v2 git bundle\n-{ID} first\n{ID} refs/heads/main"), "leaves out commits"),
            (format!("# v3 git bundle\n@filter=blob:none\n{ID} refs/heads/main"), "needs: filter"),
            (format!("# v3 git bundle\n@object-format=sha256\n{ID} refs/heads/main"), "needs: object-format=sha256"),
            (format!("# v4 git bundle\n{ID} refs/heads/main"), "unknown version"),
            ("# v2 git bundle\nxyz refs/heads/main".to_owned(), "the Git bundle: "),
            ("# v2 git bundle\nxyz".to_owned(), "cannot be read"),
        ] {
            let error = GitBundle::parse(&bundle(&lines), &main).unwrap_err();
            assert!(error.reason.contains(why), "{lines}: {error}");
        }
        assert!(GitBundle::parse(&vec![b'x'; 1 << 20], &main).unwrap_err().reason.contains("no end of its list"));
    }

    #[test]
    fn made_up_bundles() {
        let valid = vec![bundle(&format!("# v2 git bundle\n{ID} refs/heads/main"))];
        let main = Branch::parse("main").unwrap();
        fuzz!("git_bundles", valid, move |bytes: &[u8]| GitBundle::parse(bytes, &main).is_ok());
    }
}
