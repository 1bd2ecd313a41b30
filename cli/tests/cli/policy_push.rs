//! `comity policy push` to a real registry.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;

use comity_testkit::{OciRegistry, SignedGit, requirements};

use super::{comity, run, stderr, stdout};

/// The manifest of an artifact, as the registry has it.
fn manifest(registry: SocketAddr, reference: &str) -> serde_json::Value {
    let mut stream = TcpStream::connect(registry).unwrap();
    let request = format!(
        "GET /v2/federation/policy/manifests/{reference} HTTP/1.0\r\nhost: x\r\naccept: \
         application/vnd.oci.image.manifest.v1+json\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn push(clone: &Path, address: &str, more: &[&str]) -> std::process::Output {
    run(&[&["policy", "push", address, "--repo", clone.to_str().unwrap()], more].concat())
}

#[test]
fn a_branch_is_pushed_with_its_whole_history() {
    if !requirements::met("comity policy push", &OciRegistry::missing()) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let registry = OciRegistry::start(home.path()).unwrap();
    let clone = SignedGit::init(home.path(), &["ingrid"]).unwrap();
    clone.write("policy/a.yaml", "a: 1\n").unwrap();
    clone.commit(Some("ingrid"), "one").unwrap();
    clone.write("policy/a.yaml", "a: 2\n").unwrap();
    let head = clone.commit(Some("ingrid"), "two").unwrap();
    let address = format!("oci+http://{}/federation/policy:main", registry.address);

    let pushed = push(&clone.path(), &address, &["-o", "json"]);
    assert!(pushed.status.success(), "{}", stderr(&pushed));
    let pushed: serde_json::Value = serde_json::from_str(&stdout(&pushed)).unwrap();
    assert_eq!((&pushed["address"], &pushed["commit"]), (&address.as_str().into(), &head.as_str().into()));
    let digest = pushed["digest"].as_str().unwrap();
    let found = manifest(registry.address, "main");
    assert_eq!(found, manifest(registry.address, digest), "the tag is on what was pushed");
    assert_eq!(found["layers"][0]["mediaType"], "application/vnd.comity.policy.v1.git-bundle");
    let shown = push(&clone.path(), &address, &[]);
    assert!(stderr(&shown).contains("KiB to 127.0.0.1"), "{}", stderr(&shown));
    assert!(stdout(&shown).contains(&format!("policy@{digest}")), "the same commits have the same artifact: {shown:?}");

    let shallow = home.path().join("shallow");
    let url = format!("file://{}", clone.path().display());
    let cloned = Command::new("git").args(["clone", "--quiet", "--depth", "1", &url]).arg(&shallow).status().unwrap();
    assert!(cloned.success());
    for (clone, address, more, code, problem) in [
        (shallow.as_path(), address.as_str(), &[][..], 2, "lacks a part of its history"),
        (&clone.path(), &address, &["--branch", "other"], 2, "--branch"),
        (&clone.path(), "oci://registry.example/policy", &[], 2, "neither a tag nor a digest"),
        (&clone.path(), "https://registry.example/policy:main", &[], 2, "is none of an artifact"),
        (&clone.path(), &address.replace(":main", &format!("@{digest}")), &[], 2, "has no tag"),
        (&clone.path(), "oci+http://127.0.0.1:1/policy:main", &[], 5, "cannot reach 127.0.0.1:1"),
        (&clone.path(), &address, &["--registry-config", "/nowhere/config.json"], 5, "registry's credentials"),
    ] {
        let failed = push(clone, address, more);
        let said = stderr(&failed);
        assert!(
            failed.status.code() == Some(code) && said.contains(problem),
            "{address} {more:?}: {:?} {said}",
            failed.status
        );
    }
    let secret = push(&clone.path(), "oci://bot:hunter2@registry.example/policy:main", &[]);
    assert!(!secret.status.success() && !stderr(&secret).contains("hunter2"), "{}", stderr(&secret));
}

/// A registry that asks for a user and a password, and then refuses. Returns what a caller sent in `Authorization`.
fn registry_with_users() -> (SocketAddr, JoinHandle<Vec<Option<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = std::thread::spawn(move || {
        ["401 Unauthorized\r\nwww-authenticate: Basic realm=\"registry\"", "403 Forbidden"]
            .map(|answer| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                let mut byte = [0; 1];
                while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                    request.push(byte[0]);
                }
                let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).unwrap();
                let request = String::from_utf8(request).unwrap();
                let sent = request.lines().find_map(|line| line.strip_prefix("authorization: "));
                sent.map(str::to_owned)
            })
            .to_vec()
    });
    (address, serve)
}

#[test]
fn the_registry_gets_the_credentials_of_the_flag_or_of_docker() {
    let home = tempfile::tempdir().unwrap();
    let clone = SignedGit::init(home.path(), &["ingrid"]).unwrap();
    clone.write("policy/a.yaml", "a: 1\n").unwrap();
    clone.commit(Some("ingrid"), "one").unwrap();
    let file = home.path().join("config.json");
    for is_flag in [true, false] {
        let (registry, serve) = registry_with_users();
        let auths = serde_json::json!({"auths": {registry.to_string(): {"username": "bot", "password": "geheim"}}});
        comity_runtime::atomic_file::write(&file, auths.to_string().as_bytes(), comity_runtime::atomic_file::PRIVATE)
            .unwrap();
        let address = format!("oci+http://{registry}/policy:main");
        let mut command = comity();
        command.args(["policy", "push", &address, "--repo", clone.path().to_str().unwrap()]);
        match is_flag {
            true => command.arg("--registry-config").arg(&file).env("DOCKER_CONFIG", "/nowhere"),
            false => command.env("DOCKER_CONFIG", home.path()),
        };
        let failed = command.output().unwrap();
        let said = stderr(&failed);
        assert!(failed.status.code() == Some(5) && said.contains("403"), "{said}");
        assert!(said.contains("docker login") && !said.contains("geheim"), "{said}");
        assert_eq!(serve.join().unwrap(), [None, Some("Basic Ym90OmdlaGVpbQ==".to_owned())]);
    }
}
