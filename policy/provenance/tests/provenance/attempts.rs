//! Attempts to change the policy without its owners. Each is refused, and says why.

#[path = "attempts/data.rs"]
pub(crate) mod data;
#[path = "attempts/departures.rs"]
pub(crate) mod departures;
#[path = "attempts/members.rs"]
pub(crate) mod members;
#[path = "attempts/merges.rs"]
mod merges;
#[path = "attempts/reservations.rs"]
pub(crate) mod reservations;

use comity_provenance::{Refused, Verdict};

use super::repository::Repository;

/// What is attempted; the code of the refusal, and a part of its text.
type Attempt = (&'static str, fn(&mut Repository), &'static str, &'static str);

const THREADS: usize = 4;

fn change_cluster(repository: &Repository) {
    repository.edit("cluster.yaml", "localReserveGpus: 2", "localReserveGpus: 0");
}

fn change_rule(repository: &Repository) {
    repository.edit("rule.yaml", "m24", "m240");
}

/// Makes the key of `eve` one of institution `centre`'s.
fn add_key_of_eve(repository: &Repository) {
    let (of_centre, of_eve) = (repository.key("centre"), repository.key("eve"));
    repository.edit(
        "centre.yaml",
        &format!("{{key: {of_centre}}}"),
        &format!("{{key: {of_centre}}}, {{key: {of_eve}}}"),
    );
}

fn attempts() -> Vec<Attempt> {
    vec![
        (
            "an unsigned change",
            |repository| {
                change_cluster(repository);
                repository.commit(None, "x");
            },
            "unsigned",
            "changes Cluster `centre-main` without the signature of institution `centre`: it is not signed",
        ),
        (
            "a change signed by nobody whom the policy knows",
            |repository| {
                change_rule(repository);
                repository.commit(Some("eve"), "x");
            },
            "unsigned",
            "without the signature of a maintainer: it is signed by the key SHA256:",
        ),
        (
            "a change signed with an RSA key",
            |repository| {
                let mut keygen = std::process::Command::new("ssh-keygen");
                keygen.args(["-q", "-t", "rsa", "-b", "2048", "-N", "", "-f"]).arg(repository.path().join("keys/rsa"));
                assert!(keygen.status().unwrap().success());
                change_rule(repository);
                repository.commit(Some("rsa"), "x");
            },
            "unsigned",
            "it is signed with a key of ssh-rsa; use Ed25519 or ECDSA",
        ),
        (
            "a maintainer rewrites the terms of an institution's cluster",
            |repository| {
                change_cluster(repository);
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            "without the signature of institution `centre`: it is signed by maintainer ingrid",
        ),
        (
            "a maintainer replaces the keys of an institution",
            |repository| {
                add_key_of_eve(repository);
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            "changes Institution `centre` without the signature of institution `centre`",
        ),
        (
            "an institution makes itself a maintainer",
            |repository| {
                repository.edit("federation.yaml", "user/otto]", "user/otto, spiffe://t.example/user/poly]");
                repository.commit(Some("poly"), "x");
            },
            "unsigned",
            "changes Federation `f` without the signature of 2 maintainers (it has 0): it is signed by institution `poly`",
        ),
        (
            "an institution changes a class of GPUs",
            |repository| {
                repository.edit("class.yaml", "1000", "10");
                repository.commit(Some("poly"), "x");
            },
            "unsigned",
            "changes GpuClass `large` without the signature of a maintainer: it is signed by institution `poly`",
        ),
        (
            "an institution changes another one's cluster",
            |repository| {
                change_cluster(repository);
                repository.commit(Some("poly"), "x");
            },
            "unsigned",
            "without the signature of institution `centre`: it is signed by institution `poly`",
        ),
        (
            "one maintainer adds another one",
            |repository| {
                repository.edit("federation.yaml", "user/otto]", "user/otto, spiffe://t.example/user/third]");
                repository.commit(Some("ingrid"), "x");
            },
            "unsigned",
            "2 maintainers (it has 1)",
        ),
        (
            "one maintainer approves what the same one signed",
            |repository| {
                repository.edit("federation.yaml", "user/otto]", "user/otto, spiffe://t.example/user/third]");
                let change = repository.commit(Some("ingrid"), "x");
                repository.approve("ingrid", change);
            },
            "unsigned",
            "2 maintainers (it has 1)",
        ),
        (
            "one maintainer ends the need for signatures",
            |repository| {
                repository.edit("federation.yaml", "required: true", "required: false");
                repository.commit(Some("otto"), "x");
            },
            "unsigned",
            "changes Federation `f` without the signature of 2 maintainers (it has 1)",
        ),
        (
            "two maintainers end the need for the signatures of institutions",
            |repository| {
                repository.edit("federation.yaml", "required: true", "required: false");
                let change = repository.commit(Some("otto"), "x");
                repository.approve("ingrid", change);
            },
            "unsigned",
            "changes Federation `f` without the signature of institution `centre` and institution `poly`",
        ),
        (
            "a maintainer makes itself a broker operator",
            |repository| {
                repository.edit("federation.yaml", "required: true", "required: true, maintainersNeeded: 1");
                repository.commit(Some("ingrid"), "x");
                repository.take_into_force();
                let operators = "brokerOperators: [spiffe://t.example/user/ingrid";
                repository.edit("federation.yaml", operators, &format!("{operators}, spiffe://t.example/user/otto"));
                repository.commit(Some("otto"), "y");
            },
            "unsigned",
            "changes Federation `f` without the signature of a maintainer who is a broker operator",
        ),
        (
            "a commit adds the key that signed it",
            |repository| {
                add_key_of_eve(repository);
                repository.commit(Some("eve"), "x");
            },
            "unsigned",
            "changes Institution `centre` without the signature of institution `centre`: it is signed by the key",
        ),
        (
            "a key added without its owner signs the next commit",
            |repository| {
                add_key_of_eve(repository);
                repository.commit(None, "x");
                change_cluster(repository);
                repository.commit(Some("eve"), "y");
            },
            "unsigned",
            "changes Cluster `centre-main` without the signature of institution `centre`: it is signed by the key",
        ),
        (
            "a commit removes its own signer, who then signs another one",
            |repository| {
                let (old, new) = (repository.key("centre"), repository.key("new"));
                repository.edit("centre.yaml", &old, &new);
                repository.commit(Some("centre"), "x");
                change_cluster(repository);
                repository.commit(Some("centre"), "y");
            },
            "unsigned",
            "changes Cluster `centre-main` without the signature of institution `centre`: it is signed by the key",
        ),
        (
            "a removed key signed a commit on a branch that is merged later",
            |repository| {
                repository.git(&["checkout", "--quiet", "-b", "old"]);
                change_cluster(repository);
                repository.commit(Some("centre"), "x");
                repository.git(&["checkout", "--quiet", "main"]);
                let (old, new) = (repository.key("centre"), repository.key("new"));
                repository.edit("centre.yaml", &old, &new);
                repository.commit(Some("centre"), "y");
                repository.merge("old", None);
            },
            "unsigned",
            "changes Cluster `centre-main` without the signature of institution `centre`: it is not signed",
        ),
        (
            "a key whose time is over",
            |repository| {
                repository.edit("quota.yaml", "maxConcurrentGpus: 8", "maxConcurrentGpus: 80");
                repository.commit(Some("old"), "x");
            },
            "unsigned",
            "it is signed by institution `poly`, with a key whose `until` is over",
        ),
        (
            "a key whose time is over, in a commit dated back",
            |repository| {
                repository.edit("quota.yaml", "maxConcurrentGpus: 8", "maxConcurrentGpus: 80");
                repository.commit(Some("old"), "x");
                repository.git(&["-c", "core.abbrev=40", "log", "-1"]);
                let key = format!("-S{}", repository.path().join("keys/old").display());
                repository.git(&["commit", "--quiet", "--amend", "--no-edit", "--date=2026-01-01T00:00:00Z", &key]);
            },
            "unsigned",
            "with a key whose `until` is over",
        ),
        (
            "the signature of another commit",
            |repository| {
                repository.commit(Some("centre"), "harmless");
                let object = repository.git(&["cat-file", "commit", "HEAD"]);
                let (from, to) = (object.find("gpgsig ").unwrap(), object.find("-----END SSH SIGNATURE-----").unwrap());
                let signature = format!("{}-----END SSH SIGNATURE-----\n", &object[from..to]);
                change_cluster(repository);
                repository.commit(None, "x");
                repository.forge(|commit| commit.replacen("\n\n", &format!("\n{signature}\n"), 1));
            },
            "unsigned",
            "changes Cluster `centre-main` without the signature of institution `centre`: its signature does not fit",
        ),
        (
            "a signature with a changed tree",
            |repository| {
                repository.commit(Some("centre"), "harmless");
                change_cluster(repository);
                repository.git(&["add", "policy"]);
                let tree = repository.git(&["write-tree"]);
                repository.forge(|commit| format!("tree {tree}{}", &commit["tree ".len() + tree.len()..]));
            },
            "unsigned",
            "its signature does not fit the commit",
        ),
        (
            "a signature made for a file",
            |repository| {
                change_cluster(repository);
                repository.commit(None, "x");
                sign_for(repository, "file");
            },
            "unsigned",
            "its signature was made for something else than a commit",
        ),
        (
            "a signature that cannot be read",
            |repository| {
                change_cluster(repository);
                repository.commit(Some("centre"), "x");
                repository.forge(|commit| commit.replacen("U1NIU0lH", "AAAAAAAA", 1));
            },
            "unsigned",
            "its signature cannot be read",
        ),
        (
            "a signature of OpenPGP",
            |repository| {
                change_cluster(repository);
                repository.commit(None, "x");
                let armour = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n AAAA\n -----END PGP SIGNATURE-----\n";
                repository.forge(|commit| commit.replacen("\n\n", &format!("\n{armour}\n"), 1));
            },
            "unsigned",
            "it is signed, but not with an SSH key",
        ),
        (
            "an unsigned merge of an unsigned change",
            |repository| {
                repository.git(&["checkout", "--quiet", "-b", "proposal"]);
                change_cluster(repository);
                repository.commit(None, "x");
                repository.git(&["checkout", "--quiet", "main"]);
                repository.merge("proposal", None);
            },
            "unsigned",
            "changes Cluster `centre-main` without the signature of institution `centre`: it is not signed",
        ),
        (
            "an unsigned merge that changes more than its branch did",
            |repository| {
                repository.git(&["checkout", "--quiet", "-b", "proposal"]);
                change_cluster(repository);
                repository.commit(Some("centre"), "x");
                repository.git(&["checkout", "--quiet", "main"]);
                repository.git(&["merge", "--quiet", "--no-ff", "--no-commit", "proposal"]);
                repository.edit("cluster.yaml", "to: {institutions: [poly]}", "maxGpus: 1000");
                repository.git(&["add", "policy"]);
                repository.git(&["commit", "--quiet", "-m", "Merge"]);
            },
            "unsigned",
            "changes Cluster `centre-main` without the signature of institution `centre`",
        ),
        (
            "an owner's signature on top of a branch that somebody else changed",
            |repository| {
                repository.git(&["checkout", "--quiet", "-b", "proposal"]);
                change_cluster(repository);
                repository.commit(None, "x");
                repository.commit(Some("centre"), "something else");
                repository.git(&["checkout", "--quiet", "main"]);
                repository.merge("proposal", None);
            },
            "unsigned",
            "changes Cluster `centre-main` without the signature of institution `centre`",
        ),
        (
            "an approval with an abbreviated id",
            |repository| {
                change_cluster(repository);
                let change = repository.commit(None, "x").to_string();
                repository.commit(Some("centre"), &format!("Approve\n\nApproves: {}", &change[..12]));
            },
            "unsigned",
            "changes Cluster `centre-main`",
        ),
        (
            "an unsigned approval",
            |repository| {
                change_cluster(repository);
                let change = repository.commit(None, "x");
                repository.commit(None, &format!("Approve\n\nApproves: {change}"));
            },
            "unsigned",
            "changes Cluster `centre-main`",
        ),
        (
            "an approval of an earlier version",
            |repository| {
                change_cluster(repository);
                let change = repository.commit(None, "x");
                repository.edit("cluster.yaml", "localReserveGpus: 0", "localReserveGpus: 1");
                repository.commit(None, "y");
                repository.approve("centre", change);
            },
            "unsigned",
            "changes Cluster `centre-main`",
        ),
    ]
}

/// Signs the head's object for another purpose than Git's.
fn sign_for(repository: &Repository, namespace: &str) {
    let object = repository.path().join("unsigned");
    std::fs::write(&object, format!("{}\n", repository.git(&["cat-file", "commit", "HEAD"]))).unwrap();
    let signed = std::process::Command::new("ssh-keygen")
        .args(["-q", "-Y", "sign", "-n", namespace, "-f"])
        .arg(repository.path().join("keys/centre"))
        .arg(&object)
        .status();
    assert!(signed.unwrap().success());
    let armour = std::fs::read_to_string(object.with_extension("sig")).unwrap();
    let header = format!("gpgsig {}\n", armour.trim().replace('\n', "\n "));
    repository.forge(|commit| commit.replacen("\n\n", &format!("\n{header}\n"), 1));
}

#[test]
fn no_attempt_succeeds_and_each_says_why() {
    each_is_refused(
        &attempts().into_iter().chain(members::attempts()).chain(data::attempts()).collect::<Vec<Attempt>>(),
    );
}

/// Makes each attempt in a repository of its own.
fn each_is_refused(attempts: &[Attempt]) {
    // Most of the time goes into starting git.
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let parts = attempts.chunks(attempts.len().div_ceil(THREADS));
        let parts: Vec<_> = parts.map(|part| scope.spawn(|| part.iter().filter_map(outcome).collect())).collect();
        parts.into_iter().flat_map(|part| part.join().unwrap_or_else(|_| vec!["panicked".to_owned()])).collect()
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What is wrong with the verdict about an attempt.
fn outcome((name, attempt, code, text): &Attempt) -> Option<String> {
    let mut repository = Repository::new();
    attempt(&mut repository);
    match repository.judge() {
        Verdict::Refused(refused) if refused.reason.code() == *code && refused.to_string().contains(text) => {
            refused.remedy().is_empty().then(|| format!("{name}: no remedy"))
        }
        Verdict::Refused(refused) => Some(format!("{name}: {}: {refused}", refused.reason.code())),
        Verdict::Accepted(_) => Some(format!("{name}: accepted")),
        Verdict::Unchanged => Some(format!("{name}: unchanged")),
    }
}

#[test]
fn the_signature_that_the_remedy_asks_for_is_enough() {
    let repository = Repository::new();
    change_cluster(&repository);
    let change = repository.commit(Some("ingrid"), "x");
    let Verdict::Refused(refused) = repository.judge() else { panic!("accepted") };
    let Refused { commit, .. } = refused;
    assert_eq!(commit, change);
    assert!(refused.remedy().contains(&format!("'Approves: {change}'")), "{}", refused.remedy());
    let key = format!("-S{}", repository.path().join("keys/centre").display());
    let trailer = format!("Approves: {change}");
    repository.git(&["commit", "--quiet", "--allow-empty", &key, "-m", "Approve", "--trailer", &trailer]);
    assert!(matches!(repository.judge(), Verdict::Accepted(_)));
}
