//! `comity-broker ca`: roots and intermediates of a federation. The first two commands work where the root is, offline.

use std::path::Path;
use std::time::{Duration, SystemTime};

use comity_runtime::ca::{CertificateAuthority, PreviousRoot, RootAuthority};
use comity_runtime::identity::RootHash;
use comity_runtime::spiffe::TrustDomain;

use crate::config::{ConfigError, Settings, ca_dir};
use crate::provision::{ProvisionError, check_domain, free};

/// Makes the root of a federation, or the one that takes over from `succeeds`.
///
/// # Errors
/// [`ProvisionError`]; what exists is never overwritten.
pub fn make_root(
    trust_domain: Option<&TrustDomain>,
    succeeds: Option<&Path>,
    out: &Path,
) -> Result<RootHash, ProvisionError> {
    free(out)?;
    let now = SystemTime::now();
    let root = match (trust_domain, succeeds) {
        (_, Some(dir)) => load_root(dir)?.successor(now)?,
        (Some(trust_domain), None) => RootAuthority::create(trust_domain.clone(), now)?,
        (None, None) => {
            let reason = "give the trust domain of a new federation, or the root that this one takes over from with \
                --succeeds";
            return Err(ConfigError::value("trust-domain", "", reason).into());
        }
    };
    root.save(out)?;
    Ok(root.sha256())
}

/// Makes an intermediate in a new directory, to be installed on brokers.
///
/// # Errors
/// [`ProvisionError`]; what exists is never overwritten.
pub fn make_intermediate(
    root: &Path,
    validity: Duration,
    previous: PreviousRoot,
    out: &Path,
) -> Result<AuthorityStatus, ProvisionError> {
    free(out)?;
    let authority = load_root(root)?.intermediate(validity, previous, SystemTime::now())?;
    authority.save(out)?;
    Ok(AuthorityStatus::of(&authority))
}

fn load_root(root: &Path) -> Result<RootAuthority, ProvisionError> {
    let failed = |source| ProvisionError::NotARoot { path: root.to_owned(), source };
    RootAuthority::load(root).map_err(failed)
}

/// Whether an intermediate may end the trust in a root, or begin it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldRoots {
    /// Those in force stay, and none that was dropped comes back.
    Unchanged,
    /// Members under a dropped root are cut off, and join again. Certificates of one that comes back are accepted.
    MayChange,
}

/// Puts an intermediate into the data directory of a broker, which takes it up while it runs.
///
/// # Errors
/// [`ProvisionError`] if it is of another federation, has ended, changes the trust in old roots that are to stay, or
/// cannot be written; then nothing was changed.
pub fn install(from: &Path, data: &Path, old_roots: OldRoots) -> Result<AuthorityStatus, ProvisionError> {
    Settings::load(data)?;
    check_holds_intermediate(from)?;
    let (next, current) = (CertificateAuthority::load(from)?, CertificateAuthority::load(&ca_dir(data))?);
    check_domain("from", from, next.trust_domain(), current.trust_domain())?;
    if next.not_after() <= SystemTime::now() {
        return Err(ConfigError::value("from", from.display(), "this intermediate has ended; make another one").into());
    }
    // Those who know the roots in force must accept the next intermediate, or all agents would have to join again.
    let known = |hash: RootHash| current.roots().contains(&hash);
    if !next.roots().hashes().any(known) {
        let reason = "it shares no root with the one in force, so that no agent and no user would accept this broker; \
            make its root with `comity-broker ca root --succeeds`, or put the old root into ca.crt too";
        return Err(ConfigError::value("from", from.display(), reason).into());
    }
    if let Some(root) = next.dropped_root(&current) {
        let reason = format!(
            "it drops the root {root}, the newest one in force, which signed none of its roots: members refuse its \
             certificates; make an intermediate of that root or of its successor, or put that root into ca.crt too"
        );
        return Err(ConfigError::value("from", from.display(), reason).into());
    }
    let again = next.returning_roots(&current);
    if old_roots == OldRoots::Unchanged && !again.is_empty() {
        let reason = format!(
            "with it, trust in the root {} begins again, which is older than the newest one in force: whoever has an \
             intermediate of that root, by theft too, is let in; install the intermediate that was made last, or make \
             one with `comity-broker ca intermediate --drop-previous`. If you want that root back, repeat this with --yes",
            listed(again)
        );
        return Err(ConfigError::value("from", from.display(), reason).into());
    }
    let dropped: Vec<RootHash> =
        current.roots().hashes().filter(|old| next.roots().hashes().all(|root| root != *old)).collect();
    if old_roots == OldRoots::Unchanged && !dropped.is_empty() {
        let reason = format!(
            "it ends the trust in the root {}: whoever has no certificate of the new root yet is cut off at once and must \
             join again. This command does not ask the brokers: 'comity raft status' says how many users and which \
             clusters these are, but does not count certificates made on a broker's disk: as the first admin, run 'comity \
             login --renew' first. If there are none, or an intermediate was stolen, repeat this with --yes",
            listed(dropped)
        );
        return Err(ConfigError::value("from", from.display(), reason).into());
    }
    next.replace(&ca_dir(data))?;
    Ok(AuthorityStatus::of(&next))
}

fn listed(roots: Vec<RootHash>) -> String {
    roots.iter().map(RootHash::to_string).collect::<Vec<_>>().join(", ")
}

/// Refuses a directory without the files of an intermediate, most often that of a root.
fn check_holds_intermediate(from: &Path) -> Result<(), ProvisionError> {
    let Some(missing) = CertificateAuthority::missing_file(from) else { return Ok(()) };
    let shown = from.display();
    let reason = if RootAuthority::exists(from) {
        format!(
            "it holds a root, which stays offline, and no {missing}; make an intermediate with `comity-broker ca \
             intermediate --root {shown} --out DIR`, and install that one"
        )
    } else {
        format!(
            "it has no {missing}; name a directory with tls.crt, tls.key and ca.crt, as `comity-broker ca intermediate \
             --out DIR` makes it"
        )
    };
    Err(ConfigError::value("from", shown, reason).into())
}

/// What `comity-broker ca status` shows.
///
/// # Errors
/// [`ProvisionError`].
pub fn status(data: &Path) -> Result<AuthorityStatus, ProvisionError> {
    Settings::load(data)?;
    Ok(AuthorityStatus::of(&CertificateAuthority::load(&ca_dir(data))?))
}

/// An authority in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorityStatus {
    /// End of the intermediate.
    pub not_after: SystemTime,
    /// Whether the next one is due.
    pub is_due: bool,
    /// The root that signed it.
    pub root: RootHash,
    /// All roots that members trust.
    pub roots: Vec<RootHash>,
}

impl AuthorityStatus {
    fn of(authority: &CertificateAuthority) -> Self {
        Self {
            not_after: authority.not_after(),
            is_due: SystemTime::now() >= authority.renew_at(),
            root: authority.root_sha256(),
            roots: authority.roots().hashes().collect(),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeSet;

    use comity_runtime::spiffe::UserName;

    use super::*;
    use crate::config::parse_members;
    use crate::provision::{Init, init};

    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// A folder with the `data` of a broker, and its root in `data-root`.
    fn founded() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        init(&Init {
            data: home.path().join("data"),
            trust_domain: TrustDomain::new("dev.test").unwrap(),
            settings: Settings {
                id: 1,
                members: parse_members("1=a:7444/a:7443").unwrap(),
                bootstrap_admins: BTreeSet::new(),
                hosts: BTreeSet::new(),
            },
            admin: UserName::new("ingrid").unwrap(),
            admin_out: home.path().join("ingrid"),
        })
        .unwrap();
        home
    }

    #[test]
    fn the_documented_sequence_replaces_intermediate_and_root() {
        let home = founded();
        let at = |name: &str| home.path().join(name);
        let installed = |name: &str| install(&at(name), &at("data"), OldRoots::Unchanged);
        let first = status(&at("data")).unwrap();
        assert_eq!(first.roots, [first.root]);
        assert!(!first.is_due);

        make_intermediate(&at("data-root"), DAY * 30, PreviousRoot::Trusted, &at("next")).unwrap();
        let second = installed("next").unwrap();
        assert!(second.root == first.root && second.not_after < first.not_after);
        assert_eq!(status(&at("data")).unwrap(), second);

        // The root: both are trusted, then the new one alone.
        let root = make_root(None, Some(&at("data-root")), &at("root-2")).unwrap();
        make_intermediate(&at("root-2"), DAY * 30, PreviousRoot::Trusted, &at("both")).unwrap();
        make_intermediate(&at("root-2"), DAY * 30, PreviousRoot::Dropped, &at("alone")).unwrap();
        let refused = installed("alone").unwrap_err().to_string();
        assert!(refused.contains("shares no root with the one in force"), "{refused}");
        assert_eq!(installed("both").unwrap().roots, [root, first.root]);
        let refused = installed("next").unwrap_err().to_string();
        assert!(refused.contains(&format!("it drops the root {root}, the newest one in force")), "{refused}");
        // Somebody may not have renewed yet.
        let refused = installed("alone").unwrap_err().to_string();
        assert!(refused.contains(&format!("it ends the trust in the root {}", first.root)), "{refused}");
        assert!(refused.contains("comity raft status") && refused.ends_with("repeat this with --yes"), "{refused}");
        assert_eq!(status(&at("data")).unwrap().roots, [root, first.root]);
        assert_eq!(install(&at("alone"), &at("data"), OldRoots::MayChange).unwrap().roots, [root]);

        // A directory without an intermediate is refused by the file that it lacks.
        let refused = installed("root-2").unwrap_err().to_string();
        assert!(refused.contains("holds a root") && refused.contains("no tls.crt"), "{refused}");
        assert!(refused.contains("ca intermediate --root"), "{refused}");
        std::fs::create_dir(at("empty")).unwrap();
        let refused = installed("empty").unwrap_err().to_string();
        assert!(refused.contains("it has no tls.crt; name a directory with"), "{refused}");

        // What exists stays, and another federation's is refused.
        assert!(matches!(make_root(None, Some(&at("root-2")), &at("root-2")), Err(ProvisionError::Exists { .. })));
        make_root(Some(&TrustDomain::new("other.test").unwrap()), None, &at("other-root")).unwrap();
        make_intermediate(&at("other-root"), DAY, PreviousRoot::Trusted, &at("other")).unwrap();
        assert!(installed("other").unwrap_err().to_string().contains("'other.test'"));
        assert_eq!(status(&at("data")).unwrap().root, root);
    }

    #[test]
    fn dropped_root_comes_back_with_an_intermediate_from_before() {
        let home = founded();
        let at = |name: &str| home.path().join(name);
        let installed = |name: &str, old_roots| install(&at(name), &at("data"), old_roots);
        let stolen = status(&at("data")).unwrap().root;
        let root = make_root(None, Some(&at("data-root")), &at("root-2")).unwrap();
        make_intermediate(&at("root-2"), DAY * 30, PreviousRoot::Trusted, &at("next")).unwrap();
        make_intermediate(&at("root-2"), DAY * 30, PreviousRoot::Dropped, &at("last")).unwrap();
        installed("next", OldRoots::Unchanged).unwrap();
        installed("last", OldRoots::MayChange).unwrap();

        let refused = installed("next", OldRoots::Unchanged).unwrap_err().to_string();
        assert!(refused.contains(&format!("trust in the root {stolen} begins again")), "{refused}");
        assert!(refused.contains("--drop-previous") && refused.ends_with("repeat this with --yes"), "{refused}");
        assert_eq!(status(&at("data")).unwrap().roots, [root]);
        assert_eq!(installed("next", OldRoots::MayChange).unwrap().roots, [root, stolen]);
    }
}
