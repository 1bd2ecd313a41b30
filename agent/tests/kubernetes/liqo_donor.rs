//! Lending through real Liqo, with only the rights of `deploy/agent/`, to a consumer that tries to get more.

#[path = "liqo_donor/attempt.rs"]
mod attempt;
#[path = "liqo_donor/attempts.rs"]
mod attempts;
#[path = "liqo_donor/consumer.rs"]
mod consumer;
#[path = "liqo_donor/lab.rs"]
mod lab;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use comity_agent_liqo::donor::{Grants, POLICIES_MANIFEST, POLICY_NAMES, PolicyKeeper, slice_user};
use comity_agent_liqo::{LiqoPeer, TenantRequest};
use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::watch;

use crate::cluster::{PATIENCE, eventually};
use attempt::Attempt;
use attempts::ATTEMPTS;
use lab::{Lab, POD_NAMESPACE, TENANT_NAMESPACE};

pub(crate) async fn lending_through_liqo() {
    let lab = Lab::start().await;
    names_that_have_rights_are_refused(&lab).await;
    requests_for_more_are_not_signed(&lab).await;
    let consumer = lab.admit().await;
    consumer.borrow(&lab, "lease-7").await;
    consumer.offload_namespace(&lab).await;

    let mut wrong = Vec::new();
    for attempt in ATTEMPTS.iter() {
        wrong.extend(without_policies(&lab, &consumer, attempt).await);
    }
    writes_by_others_are_reverted(&lab, &consumer).await;
    liqo_alone_signs_consumers_into_any_group(&lab, &consumer).await;

    let keeper = lab.keep_policies();
    wait_for(&mut keeper.health(), "the owner is told what is missing", |health| {
        health.as_ref().is_err_and(|reason| reason.contains(POLICIES_MANIFEST) && reason.contains("comity-liqo-pod"))
    })
    .await;
    lab.restore_policies().await;
    wait_for(&mut keeper.health(), "the policies are in force", |health| health.is_ok()).await;
    for attempt in ATTEMPTS.iter() {
        wrong.extend(with_policies(&lab, &consumer, attempt).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{} attempts refused", ATTEMPTS.len());
    honest_use_works(&lab, &consumer).await;
    guests_reach_no_private_network(&lab).await;
    nothing_is_lent_without_each_policy(&lab, &keeper).await;
    the_agent_cannot_weaken_the_policies(&lab).await;
    a_lease_that_ends_is_over(&lab, &consumer, &keeper).await;
    removal_leaves_nothing(&lab, &consumer).await;
    a_consumer_by_token_is_limited_too(&lab, &keeper).await;
    lab.stop().await;
}

async fn wait_for<T>(receiver: &mut watch::Receiver<T>, what: &str, holds: impl FnMut(&T) -> bool) {
    let waited = tokio::time::timeout(PATIENCE, receiver.wait_for(holds)).await;
    assert!(waited.is_ok_and(|result| result.is_ok()), "still not so after {PATIENCE:?}: {what}");
}

async fn names_that_have_rights_are_refused(lab: &Lab) {
    let peer = |id: &str| LiqoPeer { peering: "peer-9".into(), cluster: "elsewhere".into(), liqo_id: id.into() };
    let binding = |kind: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "physicists" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "physics" }],
        })
        .to_string()
    };
    for kind in ["Group", "User"] {
        lab.donor().kubectl_with_input(&["apply", "-f", "-"], &binding(kind)).await.unwrap();
        let error = lab.liqo.challenge(&peer("physics")).await.unwrap_err();
        assert!(matches!(error, DeliveryError::Permanent { code: "liqo-id-in-rbac", .. }), "{error}");
        assert!(error.to_string().contains("physicists"), "{error}");
        lab.donor().kubectl(&["delete", "clusterrolebinding", "physicists"]).await.unwrap();
    }
    for id in ["donor", "system:masters", "", "Origin"] {
        let error = lab.liqo.challenge(&peer(id)).await.unwrap_err();
        assert!(matches!(error, DeliveryError::Permanent { code: "bad-liqo-id", .. }), "{id}: {error}");
    }
}

async fn requests_for_more_are_not_signed(lab: &Lab) {
    let key = consumer::Key::generate();
    let challenge = lab.liqo.challenge(&lab.peer).await.unwrap();
    let honest = key.tenant_request(&challenge);
    for csr in [
        key.csr(&["liqo.io", "cluster-operators"], "origin"),
        key.csr(&["liqo.io"], "other"),
        key.csr(&["system:masters"], "origin"),
    ] {
        let request = TenantRequest { csr, ..honest.clone() };
        let error = lab.liqo.admit_tenant(&lab.peer, &request).await.unwrap_err();
        assert!(matches!(error, DeliveryError::Permanent { code: "bad-liqo-message", .. }), "{error}");
    }
}

/// Checks that attempts which Liqo and RBAC alone allow do succeed: otherwise their later refusal proves nothing.
async fn without_policies(lab: &Lab, consumer: &consumer::Consumer, attempt: &Attempt) -> Option<String> {
    let began = Instant::now();
    let result = loop {
        let result = attempt.make(consumer).await;
        attempt.undo(lab, consumer).await;
        // Liqo remembers a deleted ShadowPod of the same name for a moment.
        let lingers = |error: &kube::Error| error.to_string().contains("ShadowPod still exists");
        if !result.as_ref().is_err_and(lingers) || began.elapsed() > PATIENCE {
            break result;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    match (attempt.open, result) {
        (true, Ok(_)) | (false, Err(kube::Error::Api(_))) => None,
        (true, Err(error)) => Some(format!("{}: was to be possible without the policies: {error}", attempt.name)),
        (false, Err(error)) => Some(format!("{}: {error}", attempt.name)),
        (false, Ok(_)) => Some(format!("{}: is possible without the policies; say so in the table", attempt.name)),
    }
}

async fn with_policies(lab: &Lab, consumer: &consumer::Consumer, attempt: &Attempt) -> Option<String> {
    match attempt.make(consumer).await {
        Ok(_) => {
            attempt.undo(lab, consumer).await;
            Some(format!("{}: was possible", attempt.name))
        }
        Err(kube::Error::Api(status)) if status.message.contains(attempt.refusal) => {
            println!("refused: {}: {}", attempt.name, status.message);
            None
        }
        Err(error) => Some(format!("{}: {error}", attempt.name)),
    }
}

/// Shows why the policies check certificate requests: Liqo checks only the first organisation.
async fn liqo_alone_signs_consumers_into_any_group(lab: &Lab, consumer: &consumer::Consumer) {
    let groups = ["origin", "cluster-operators"];
    let csr = consumer.key.csr(&groups, &slice_user("further", "origin"));
    let slice = serde_json::from_value(consumer::slice("further", &csr, |_| ())).unwrap();
    consumer.slices().create(&PostParams::default(), &slice).await.unwrap();
    let slices = lab.slices();
    let signed = std::sync::OnceLock::new();
    eventually("Liqo has signed it", || async {
        let slice = slices.get("further").await.unwrap();
        let certificate = slice.data.pointer("/status/authParams/signedCRT").and_then(serde_json::Value::as_str);
        certificate.is_some_and(|certificate| signed.set(certificate.to_owned()).is_ok())
    })
    .await;
    let client = consumer.with_certificate(signed.get().unwrap());
    let reviews = Api::<SelfSubjectReview>::all(client);
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await.unwrap();
    let held = review.status.unwrap().user_info.unwrap().groups.unwrap();
    assert!(groups.iter().all(|group| held.contains(&(*group).to_owned())), "{held:?}");
    slices.delete("further", &DeleteParams::default()).await.unwrap();
}

/// The class controller alone: somebody with rights changes a status.
async fn writes_by_others_are_reverted(lab: &Lab, consumer: &consumer::Consumer) {
    let slices = lab.slices();
    for change in [
        json!({ "status": { "resources": { "nvidia.com/gpu": "100" } } }),
        json!({ "status": { "nodeSelector": null } }),
        json!({ "spec": { "resources": { "nvidia.com/gpu": "99" } } }),
    ] {
        if change.get("spec").is_some() {
            consumer.slices().patch("lease-7", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
        } else {
            slices.patch_status("lease-7", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
        }
        eventually("the slice is exactly its lease again", || async {
            let slice = slices.get("lease-7").await.unwrap();
            let status = &slice.data["status"];
            status["resources"] == json!(lab::resources()) && status["nodeSelector"] == json!(lab::node_selector())
        })
        .await;
    }
    eventually("Liqo counts what was leased", || async {
        let quotas = lab.quotas().list(&ListParams::default()).await.unwrap();
        quotas.items.iter().any(|quota| quota.data["spec"]["resources"]["nvidia.com/gpu"] == "2")
    })
    .await;
}

/// Before any pod was let in.
async fn guests_reach_no_private_network(lab: &Lab) {
    let policies = Api::<NetworkPolicy>::namespaced(lab.admin.clone(), POD_NAMESPACE);
    let spec = policies.get("comity-egress").await.unwrap().spec.unwrap();
    assert_eq!(spec.policy_types.unwrap(), ["Egress"]);
    let blocks: Vec<_> = spec.egress.unwrap().into_iter().filter_map(|rule| rule.to).flatten().collect();
    let public = blocks.iter().filter_map(|peer| peer.ip_block.as_ref()).find(|block| block.cidr == "0.0.0.0/0");
    let closed = public.unwrap().except.clone().unwrap();
    assert!(["10.0.0.0/8", "169.254.0.0/16"].iter().all(|network| closed.contains(&(*network).to_owned())));
}

async fn honest_use_works(lab: &Lab, consumer: &consumer::Consumer) {
    let with_sidecar = |object: &mut serde_json::Value| {
        let resources = json!({ "requests": { "cpu": "100m", "memory": "128Mi" } });
        object["spec"]["pod"]["initContainers"] = json!([
            { "name": "mesh", "image": "example.invalid/mesh:1", "restartPolicy": "Always", "resources": resources },
            { "name": "first", "image": "example.invalid/work:1", "resources": { "requests": { "cpu": "500m" } } },
        ]);
    };
    consumer.shadow_pod("honest", with_sidecar).await.unwrap();
    let pods = Api::<Pod>::namespaced(lab.admin.clone(), POD_NAMESPACE);
    eventually("Liqo makes the pod", || async { pods.get_opt("honest").await.unwrap().is_some() }).await;
    consumer.borrow(lab, "lease-8").await;
    for (name, renewal) in attempts::honest_renewals(consumer) {
        let renews = Api::<DynamicObject>::namespaced_with(
            consumer.control_plane.clone(),
            TENANT_NAMESPACE,
            &comity_agent_liqo::renew(),
        );
        let renewal = serde_json::from_value(renewal).unwrap();
        renews.create(&PostParams::default(), &renewal).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

async fn nothing_is_lent_without_each_policy(lab: &Lab, keeper: &PolicyKeeper) {
    let mut health = keeper.health();
    let breaks = [
        vec!["delete", "validatingadmissionpolicy", POLICY_NAMES[3]],
        vec!["delete", "validatingadmissionpolicybinding", POLICY_NAMES[0]],
        vec![
            "patch",
            "validatingadmissionpolicybinding",
            POLICY_NAMES[1],
            "--type=merge",
            "-p",
            r#"{"spec":{"validationActions":["Audit"]}}"#,
        ],
        vec![
            "patch",
            "validatingadmissionpolicy",
            POLICY_NAMES[2],
            "--type=merge",
            "-p",
            r#"{"spec":{"failurePolicy":"Ignore"}}"#,
        ],
        vec!["label", "validatingadmissionpolicy", POLICY_NAMES[1], "app.kubernetes.io/component-"],
        vec![
            "patch",
            "validatingadmissionpolicy",
            POLICY_NAMES[4],
            "--type=json",
            "-p",
            r#"[{"op":"add","path":"/spec/matchConditions/-","value":{"name":"never","expression":"false"}}]"#,
        ],
    ];
    for args in breaks {
        health.mark_unchanged();
        lab.donor().kubectl(&args).await.unwrap();
        let seen = tokio::time::timeout(PATIENCE, health.changed()).await;
        assert!(seen.is_ok_and(|result| result.is_ok()), "nothing was said of kubectl {args:?}");
        assert!(health.borrow_and_update().is_err(), "kubectl {args:?}");
        lab.restore_policies().await;
        wait_for(&mut health, "the owner's policies are in force again", |health| health.is_ok()).await;
    }
    lab.donor().kubectl(&["-n", "comity-system", "delete", "configmap", "comity-liqo-grants"]).await.unwrap();
    eventually("the agent writes the grants again", || async {
        lab.donor().kubectl(&["-n", "comity-system", "get", "configmap", "comity-liqo-grants"]).await.is_ok()
    })
    .await;
}

/// Whoever controls the agent has its rights and no more.
async fn the_agent_cannot_weaken_the_policies(lab: &Lab) {
    let policies = Api::<ValidatingAdmissionPolicy>::all(lab.agent.clone());
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(lab.agent.clone());
    let (ignore, audit) =
        (json!({ "spec": { "failurePolicy": "Ignore" } }), json!({ "spec": { "validationActions": ["Audit"] } }));
    for name in POLICY_NAMES {
        let parameters = PatchParams::default();
        let refused = [
            policies.patch(name, &parameters, &Patch::Merge(&ignore)).await.map(drop),
            bindings.patch(name, &parameters, &Patch::Merge(&audit)).await.map(drop),
            policies.delete(name, &DeleteParams::default()).await.map(drop),
            bindings.delete(name, &DeleteParams::default()).await.map(drop),
        ];
        for result in refused {
            assert!(
                result.is_err_and(|error| matches!(error, kube::Error::Api(status) if status.code == 403)),
                "{name}"
            );
        }
    }
    // Another account with the right to write ConfigMaps of the agent's namespace grants nothing to consumers.
    let as_other = ["--as=system:serviceaccount:default:default", "--as-group=writers"];
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "writers", "namespace": "comity-system" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "writers" }],
    });
    lab.donor().kubectl_with_input(&["apply", "-f", "-"], &binding.to_string()).await.unwrap();
    let patch =
        ["-n", "comity-system", "patch", "configmap", "comity-liqo-grants", "-p", r#"{"data":{"user.x":"origin"}}"#];
    eventually("only the agent writes the grants", || async {
        let refused = lab.donor().kubectl(&[&patch[..], &as_other[..]].concat()).await;
        refused.is_err_and(|error| error.to_string().contains("written by this cluster's agent"))
    })
    .await;
    lab.donor().kubectl(&["-n", "comity-system", "delete", "rolebinding", "writers"]).await.unwrap();
}

async fn a_lease_that_ends_is_over(lab: &Lab, consumer: &consumer::Consumer, keeper: &PolicyKeeper) {
    lab.grants.send_modify(|grants| {
        let mut fewer = Grants::clone(grants);
        fewer.0.remove("lease-7");
        *grants = fewer.into();
    });
    wait_for(&mut keeper.in_force(), "the lease is out of force", |grants| !grants.0.contains_key("lease-7")).await;
    eventually("the slice is brought to zero", || async {
        let slice = lab.slices().get("lease-7").await.unwrap();
        slice.data["status"]["resources"]["nvidia.com/gpu"] == "0"
    })
    .await;
    let error = consumer.shadow_pod("late", |_| ()).await.unwrap_err().to_string();
    assert!(error.contains("no lease in force is granted to lease-7-181fdd46fc4a"), "{error}");
    let pods = Api::<Pod>::namespaced(lab.admin.clone(), POD_NAMESPACE);
    assert!(pods.get_opt("honest").await.unwrap().is_some(), "a pod ends only when its lease is drained");

    lab.liqo.drain_slice(&lab.peer, "lease-7").await.unwrap();
    assert!(pods.get_opt("honest").await.unwrap().is_none());
    let grant = lab::grant("origin");
    assert_eq!(lab.liqo.idle_slices(&lab.peer, &grant).await.unwrap(), ["lease-7"], "it waits for the next lease");
    lab.liqo.drain_slice(&lab.peer, "lease-7").await.unwrap();
    let again = consumer.create_slice("lease-7").await.unwrap_err().to_string();
    assert!(again.contains("no lease in force is called lease-7"), "{again}");
}

/// The consumer does nothing, as if it were dead.
async fn removal_leaves_nothing(lab: &Lab, consumer: &consumer::Consumer) {
    let began = Instant::now();
    if let Err(error) = lab.liqo.remove_tenant(&lab.peer).await {
        panic!("{error}\n{}", remaining_objects(lab).await);
    }
    println!("the tenant was removed in {:?}", began.elapsed());
    let namespaces = Api::<Namespace>::all(lab.admin.clone());
    let left: BTreeSet<String> = namespaces
        .list_metadata(&ListParams::default())
        .await
        .unwrap()
        .items
        .into_iter()
        .filter_map(|one| one.metadata.name)
        .collect();
    assert!(!left.contains(POD_NAMESPACE) && !left.contains(TENANT_NAMESPACE), "{left:?}");
    let foreign = Api::<DynamicObject>::all_with(lab.admin.clone(), &comity_agent_liqo::foreign_cluster());
    assert!(foreign.get_opt("origin").await.unwrap().is_none());
    assert!(consumer.slices().list(&ListParams::default()).await.is_err(), "its certificate has no rights any more");
    lab.liqo.remove_tenant(&lab.peer).await.unwrap();
    let _ = namespaces.delete("liqo-tenant-other", &DeleteParams::default()).await;
}

/// The objects that block a removal, and Liqo's log.
async fn remaining_objects(lab: &Lab) -> String {
    let objects = "namespaces,pods,namespacemaps.offloading.liqo.io,shadowpods.offloading.liqo.io";
    let looks: [&[&str]; 4] = [
        &["get", objects, "--all-namespaces", "--output=wide"],
        &["get", "namespaces", POD_NAMESPACE, "--output=jsonpath={.metadata}{\"\\n\"}{.status}"],
        &["--namespace", TENANT_NAMESPACE, "get", "namespacemaps.offloading.liqo.io", "--output=yaml"],
        &["--namespace=liqo", "logs", "deployment/liqo-controller-manager", "--tail=40"],
    ];
    let mut texts = String::new();
    for look in looks {
        let seen = lab.donor().kubectl(look).await.unwrap_or_else(|error| error.to_string());
        texts.push_str(&format!("kubectl {}\n{seen}\n", look.join(" ")));
    }
    texts
}

async fn a_consumer_by_token_is_limited_too(lab: &Lab, keeper: &PolicyKeeper) {
    lab.lend_again();
    wait_for(&mut keeper.in_force(), "the lease is in force", |grants| grants.0.contains_key("lease-7")).await;
    let consumer = lab.admit_by_token().await;
    let reviews = Api::<SelfSubjectReview>::all(consumer.control_plane.clone());
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await.unwrap();
    let user = review.status.unwrap().user_info.unwrap().username.unwrap();
    assert_eq!(user, "system:serviceaccount:liqo-tenant-origin:comity-liqo-peer");
    consumer.borrow(lab, "lease-7").await;
    consumer.offload_namespace(lab).await;
    let mut wrong = Vec::new();
    for attempt in ATTEMPTS.iter() {
        wrong.extend(with_policies(lab, &consumer, attempt).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    honest_use_works(lab, &consumer).await;

    lab.donor().kubectl(&["-n", TENANT_NAMESPACE, "delete", "serviceaccount", "comity-liqo-peer"]).await.unwrap();
    let error = lab.liqo.mint_token(&lab.peer, lab::ROTATION_MS).await.unwrap_err();
    assert!(matches!(error, DeliveryError::Permanent { code: "liqo-token-revoked", .. }), "{error}");
    eventually("its token is refused", || async {
        consumer
            .slices()
            .list(&ListParams::default())
            .await
            .is_err_and(|error| error.to_string().contains("Unauthorized"))
    })
    .await;
    removal_leaves_nothing(lab, &consumer).await;
}
