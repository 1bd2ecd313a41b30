//! The reference set-ups for Flux and Argo CD in `deploy/gitops`, against the CustomResourceDefinitions of both.

use std::collections::BTreeSet;
use std::path::Path;

use comity_scenarios::{PATIENCE, deploy, until};
use comity_testkit::{Binaries, ControlPlane, ControlPlaneConfig};
use serde_json::Value;

/// Applies strictly: the API server refuses fields that it does not know.
const APPLY: [&str; 5] = ["apply", "--server-side", "--validate=strict", "-f", "-"];
const DRY_RUN: [&str; 6] = ["apply", "--server-side", "--validate=strict", "--dry-run=server", "-f", "-"];

struct GitopsPlane {
    plane: ControlPlane,
}

impl GitopsPlane {
    async fn build(&self, folder: &Path) -> String {
        self.plane.kubectl(&["kustomize", folder.to_str().unwrap()]).await.unwrap()
    }

    async fn accepts(&self, objects: &str) -> Result<String, String> {
        self.plane.kubectl_with_input(&DRY_RUN, objects).await.map_err(|error| error.to_string())
    }
}

/// Without the objects of Flux's notifications, whose definitions are in a module that cannot be got.
fn with_definitions(built: &str) -> String {
    let known = |object: &&str| !object.contains("apiVersion: notification.toolkit.fluxcd.io/");
    built.split("---\n").filter(known).collect::<Vec<_>>().join("---\n")
}

fn objects(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// The one object of a kind and name.
fn object(objects: &[Value], kind: &str, name: &str) -> Value {
    let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    let found: Vec<&Value> = objects.iter().filter(is_it).collect();
    assert_eq!(found.len(), 1, "{kind} {name}");
    found[0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn set_ups_for_flux_and_argo_cd_are_what_their_api_servers_accept() {
    let binaries = Binaries::with_gitops().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = ControlPlaneConfig::new("gitops", dir.path().join("gitops"));
    let site = GitopsPlane { plane: ControlPlane::start(&binaries, config).await.unwrap() };
    let definitions = binaries.program("gitops-crds.yaml");
    site.plane.kubectl(&["apply", "--server-side", "-f", definitions.to_str().unwrap()]).await.unwrap();
    // A definition that has no conditions yet is an error for `kubectl wait`.
    let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=10s"];
    until("the definitions", PATIENCE, async || Ok(Some(site.plane.kubectl(&established).await?))).await.unwrap();
    for namespace in ["flux-system", "argocd"] {
        site.plane.kubectl(&["create", "namespace", namespace]).await.unwrap();
    }
    let gitops = deploy().join("gitops");
    for (tool, field, wrong) in
        [("flux", "sourceRef:", "sourceRefs:"), ("argocd", "targetRevision:", "targetRevisions:")]
    {
        let built = with_definitions(&site.build(&gitops.join(tool)).await);
        site.accepts(&built).await.unwrap();
        let refused = site.accepts(&built.replacen(field, wrong, 1)).await.unwrap_err();
        assert!(refused.contains(wrong.trim_end_matches(':')), "{refused}");
    }

    // The brokers mount the ConfigMap that the policy's repository makes.
    let clone = dir.path().join("policy-repository");
    std::fs::create_dir_all(clone.join("policy")).unwrap();
    std::fs::copy(gitops.join("policy/Kustomization"), clone.join("Kustomization")).unwrap();
    std::fs::write(clone.join("policy/federation.yaml"), "kind: Federation\n").unwrap();
    let brokers = site.build(&gitops.join("brokers")).await;
    site.plane.kubectl_with_input(&APPLY, &brokers).await.unwrap();
    let policy = site.build(&clone).await;
    site.plane.kubectl_with_input(&APPLY, &policy).await.unwrap();
    let map = object(&objects(&policy), "ConfigMap", "comity-policy");
    assert_eq!(map["data"]["federation.yaml"], "kind: Federation\n");
    let brokers = objects(&brokers);
    let pod = object(&brokers, "StatefulSet", "comity-broker")["spec"]["template"]["spec"].clone();
    let volume = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "policy").unwrap();
    assert_eq!(
        (&volume["configMap"]["name"], &map["metadata"]["namespace"]),
        (&"comity-policy".into(), &"comity-brokers".into())
    );
    assert_eq!(pod["containers"][0]["name"], "broker", "the patch adds no container");
    // Beside git-sync all mount the same path, since a work tree names its repository by that.
    let with_sync = site.build(&gitops.join("git-sync")).await;
    site.accepts(&with_sync).await.unwrap();
    let pod = object(&objects(&with_sync), "StatefulSet", "comity-broker")["spec"]["template"]["spec"].clone();
    let paths = pod["containers"].as_array().unwrap().iter().flat_map(|container| {
        let mounts = container["volumeMounts"].as_array().unwrap().iter();
        mounts.filter(|mount| mount["name"] == "policy").map(|mount| mount["mountPath"].clone())
    });
    assert_eq!(paths.collect::<Vec<Value>>(), ["/policy", "/policy"]);

    // The project of Argo CD admits what the two applications consist of, and nothing else.
    let argo = objects(&site.build(&gitops.join("argocd")).await);
    let project = object(&argo, "AppProject", "comity")["spec"].clone();
    let listed = ["clusterResourceWhitelist", "namespaceResourceWhitelist"].into_iter().flat_map(|list| {
        let kinds = project[list].as_array().unwrap().iter();
        kinds.map(|kind| (kind["group"].as_str().unwrap().to_owned(), kind["kind"].as_str().unwrap().to_owned()))
    });
    let group = |object: &Value| {
        let version = object["apiVersion"].as_str().unwrap();
        version.split_once('/').map_or("", |(group, _)| group).to_owned()
    };
    let used = brokers.iter().chain([&map]).map(|object| (group(object), object["kind"].as_str().unwrap().to_owned()));
    // The founding Secret of docs/install.md.
    let used: BTreeSet<_> = used.chain([(String::new(), "Secret".to_owned())]).collect();
    assert_eq!(listed.collect::<BTreeSet<_>>(), used);
    for application in argo.iter().filter(|object| object["kind"] == "Application") {
        assert!(project["sourceRepos"].as_array().unwrap().contains(&application["spec"]["source"]["repoURL"]));
    }
    site.plane.stop().await.unwrap();
}

#[test]
fn flux_applies_each_file_and_reports_on_each_object() {
    let file = |name: &str| std::fs::read_to_string(deploy().join("gitops/flux").join(name)).unwrap();
    let listed: Value = serde_saphyr::from_str(&file("Kustomization")).unwrap();
    let listed = listed["resources"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned());
    let files = std::fs::read_dir(deploy().join("gitops/flux")).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(listed.collect::<BTreeSet<_>>(), files.filter(|name| name != "Kustomization").collect());

    let mut there = objects(&file("brokers.yaml"));
    there.extend(objects(&file("policy.yaml")));
    let notifications = objects(&file("notifications.yaml"));
    let alert = object(&notifications, "Alert", "comity-policy")["spec"].clone();
    object(&notifications, "Provider", alert["providerRef"]["name"].as_str().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let names = |kind: &Value, name: &Value| (text(kind), text(name));
    let sources = alert["eventSources"].as_array().unwrap().iter();
    assert_eq!(
        sources.map(|source| names(&source["kind"], &source["name"])).collect::<BTreeSet<_>>(),
        there.iter().map(|object| names(&object["kind"], &object["metadata"]["name"])).collect()
    );
    for kustomization in there.iter().filter(|object| object["kind"] == "Kustomization") {
        let source = &kustomization["spec"]["sourceRef"];
        object(&there, &text(&source["kind"]), &text(&source["name"]));
        for other in kustomization["spec"]["dependsOn"].as_array().into_iter().flatten() {
            object(&there, "Kustomization", &text(&other["name"]));
        }
        assert_eq!(kustomization["spec"]["prune"], false, "nothing of brokers is removed because a file is missing");
    }
}
