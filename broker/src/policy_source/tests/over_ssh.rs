//! Pulls from the real sshd.

use std::path::PathBuf;

use super::ssh_server::{self, SshServer, make_key, user};
use super::{Branch, PULL_PATIENCE, PolicyAccess, PullError, PulledBranch, Repository, branch, git, has, pull};

const GIT_SETTINGS: &str = "AcceptEnv GIT_PROTOCOL";

/// A repository, a server, and what a broker needs to read it.
struct OverSsh {
    home: tempfile::TempDir,
    server: SshServer,
    access: PolicyAccess,
}

impl OverSsh {
    fn new(settings: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let repository = home.path().join("policy");
        std::fs::create_dir(&repository).unwrap();
        git(&repository, &["init", "--quiet", "--initial-branch", "main"]);
        let server = SshServer::start(home.path(), settings);
        let (ssh_key, known_hosts) = (Some(server.key.clone()), Some(server.known_hosts.clone()));
        let cache = home.path().join("cache");
        let access = PolicyAccess { cache, ssh_key, known_hosts, ..PolicyAccess::default() };
        Self { home, server, access }
    }

    fn commit(&self, text: &str) -> comity_provenance::ObjectId {
        let repository = self.home.path().join("policy");
        std::fs::write(repository.join("a.yaml"), text).unwrap();
        git(&repository, &["add", "."]);
        git(&repository, &["commit", "--quiet", "-m", text]);
        git(&repository, &["rev-parse", "HEAD"]).parse().unwrap()
    }

    async fn pull_of(&self, access: &PolicyAccess, repository: &str) -> Result<PulledBranch, PullError> {
        let address = format!("ssh://{}@127.0.0.1:{}{repository}", user(), self.server.port);
        pull(access, &Repository::parse(&address).unwrap(), &Branch::parse("main").unwrap(), &[], PULL_PATIENCE)
            .await
            .map(branch)
    }

    async fn pull(&self, access: &PolicyAccess) -> Result<PulledBranch, PullError> {
        self.pull_of(access, self.home.path().join("policy").to_str().unwrap()).await
    }

    fn file(&self, name: &str, text: &str) -> Option<PathBuf> {
        let file = self.home.path().join(name);
        std::fs::write(&file, text).unwrap();
        Some(file)
    }
}

fn can_run() -> bool {
    comity_testkit::requirements::met("policy over SSH", &ssh_server::missing())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_is_fetched_over_ssh_and_then_only_what_is_new() {
    if !can_run() {
        return;
    }
    let scene = OverSsh::new(GIT_SETTINGS);
    let first = scene.commit("one");
    let pulled = scene.pull(&scene.access).await.unwrap();
    assert!(pulled.head == first && has(&pulled, first));
    let second = scene.commit("two");
    let pulled = scene.pull(&scene.access).await.unwrap();
    assert!(pulled.head == second && has(&pulled, first) && has(&pulled, second));
    assert_eq!(scene.pull(&scene.access).await.unwrap().head, second, "nothing is new");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_server_and_a_stranger_get_nothing() {
    if !can_run() {
        return;
    }
    let scene = OverSsh::new(GIT_SETTINGS);
    scene.commit("one");
    let refused = async |access: PolicyAccess| scene.pull(&access).await.map(|_| ()).unwrap_err();
    let other = scene.home.path().join("other");
    make_key(&other, "");
    let public = std::fs::read_to_string(other.with_extension("pub")).unwrap();
    let known_hosts = scene.file("impostor", &format!("[127.0.0.1]:{} {public}", scene.server.port));
    let error = refused(PolicyAccess { known_hosts, ..scene.access.clone() }).await;
    assert!(error.reason.contains("is not in --policy-known-hosts"), "{error}");
    let known_hosts = scene.file("elsewhere", &format!("127.0.0.1 {public}"));
    let error = refused(PolicyAccess { known_hosts, ..scene.access.clone() }).await;
    assert!(error.reason.contains("no Ed25519 or ECDSA key of 127.0.0.1"), "{error}");
    let error = refused(PolicyAccess { known_hosts: None, ..scene.access.clone() }).await;
    assert!(error.remedy.contains("--policy-known-hosts"), "{error}");
    let error = refused(PolicyAccess { ssh_key: None, ..scene.access.clone() }).await;
    assert!(error.remedy.contains("--policy-ssh-key"), "{error}");
    let error = refused(PolicyAccess { ssh_key: Some(other.clone()), ..scene.access.clone() }).await;
    assert!(error.reason.contains("does not admit"), "{error}");
    std::fs::remove_file(&other).unwrap();
    std::fs::remove_file(other.with_extension("pub")).unwrap();
    make_key(&other, "a passphrase");
    let error = refused(PolicyAccess { ssh_key: Some(other.clone()), ..scene.access.clone() }).await;
    assert!(error.reason.contains("passphrase"), "{error}");
    let exposed = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&scene.server.key, exposed).unwrap();
    let error = refused(scene.access.clone()).await;
    assert!(error.reason.contains("--policy-ssh-key"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn known_hosts_with_hashed_names_other_keys_and_ipv6_will_do() {
    if !can_run() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let rsa = home.path().join("rsa-host-key");
    let made = std::process::Command::new("ssh-keygen").args(["-q", "-t", "rsa", "-N", "", "-f"]).arg(&rsa).status();
    assert!(made.unwrap().success());
    let scene = OverSsh::new(&format!(
        "{GIT_SETTINGS}\nHostKey {}\nHostKeyAlgorithms +ssh-rsa\nListenAddress [::1]",
        rsa.display()
    ));
    scene.commit("one");
    let known = std::fs::read_to_string(&scene.server.known_hosts).unwrap();
    let public = std::fs::read_to_string(rsa.with_extension("pub")).unwrap();
    let rsa_line = format!("[127.0.0.1]:{} {public}", scene.server.port);
    let with = |known_hosts| PolicyAccess { known_hosts, ..scene.access.clone() };
    scene.pull(&with(scene.file("rsa-first", &format!("{rsa_line}{known}")))).await.unwrap();
    let only_rsa = scene.pull(&with(scene.file("rsa-alone", &rsa_line))).await.map(|_| ()).unwrap_err();
    assert!(only_rsa.reason.contains("no Ed25519 or ECDSA key"), "{only_rsa}");
    let hashed = scene.file("hashed", &known);
    let made = std::process::Command::new("ssh-keygen").arg("-q").arg("-Hf").arg(hashed.as_ref().unwrap()).status();
    assert!(
        made.unwrap().success() && !std::fs::read_to_string(hashed.as_ref().unwrap()).unwrap().contains("127.0.0.1")
    );
    scene.pull(&with(hashed)).await.unwrap();
    let line = known.lines().last().unwrap();
    let revoked = with(scene.file("revoked", &format!("{line}\n@revoked {line}\n")));
    let revoked = scene.pull(&revoked).await.map(|_| ()).unwrap_err();
    assert!(revoked.reason.contains("@revoked"), "{revoked}");
    let address = format!("ssh://{}@[::1]:{}{}", user(), scene.server.port, scene.home.path().join("policy").display());
    let (address, main) = (Repository::parse(&address).unwrap(), Branch::parse("main").unwrap());
    let access = with(scene.file("ipv6", &known.replace("127.0.0.1", "::1")));
    pull(&access, &address, &main, &[], PULL_PATIENCE).await.unwrap();
    let access = PolicyAccess { ssh_key: Some(rsa), ..scene.access.clone() };
    let error = scene.pull(&access).await.map(|_| ()).unwrap_err();
    assert!(error.reason.contains("an RSA key"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_do_not_serve_git_are_named() {
    if !can_run() {
        return;
    }
    let scene = OverSsh::new(GIT_SETTINGS);
    scene.commit("one");
    let error = scene.pull_of(&scene.access, "/nowhere").await.unwrap_err();
    assert!(error.reason.contains("ends the call") && error.reason.contains("nowhere"), "{error}");
    let old = OverSsh::new("");
    old.commit("one");
    let error = old.pull(&old.access).await.unwrap_err();
    assert!(error.remedy.contains("AcceptEnv GIT_PROTOCOL"), "{error}");
    let shell = OverSsh::new("ForceCommand /bin/echo 0004 0008hello");
    shell.commit("one");
    assert!(shell.pull(&shell.access).await.is_err());
}
