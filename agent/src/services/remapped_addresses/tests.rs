#![expect(clippy::unwrap_used, reason = "tests")]

use comity_fuzz::fuzz;

use super::*;

fn peer(liqo_id: &str, side: Side) -> WrittenPeer {
    WrittenPeer { liqo_id: liqo_id.to_owned(), side }
}

fn network(here: &str) -> Vec<PodNetwork> {
    vec![PodNetwork { there: "10.244.0.0/16".parse().unwrap(), here: here.parse().unwrap() }]
}

/// A donor and an origin with the same addresses.
fn peers() -> Peers {
    let donor = (peer("south", Side::Origin), network("100.64.0.0/16"));
    BTreeMap::from([donor, (peer("north", Side::Donor), network("100.65.0.0/16"))])
}

/// A review, as the API server sends it.
fn review(resource: &str, writer: &str, object: &Value) -> String {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "r", "operation": "UPDATE", "name": "o", "namespace": "team-a", "dryRun": false,
            "kind": { "group": "", "version": "v1", "kind": "Object" },
            "resource": { "group": "", "version": "v1", "resource": resource },
            "userInfo": { "username": writer }, "object": object,
        },
    });
    review.to_string()
}

/// The object after the review.
fn reviewed(resource: &str, writer: &str, object: &Value) -> Value {
    let response = answer(review(resource, writer, object).as_bytes(), &peers()).unwrap().response.unwrap();
    assert!(response.allowed);
    let mut object = object.clone();
    if let Some(patch) = response.patch {
        json_patch::patch(&mut object, &serde_json::from_slice::<json_patch::Patch>(&patch).unwrap()).unwrap();
    }
    object
}

fn pod(address: &str) -> Value {
    let status = json!({ "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" }, "status": status })
}

const KUBELET: &str = "system:serviceaccount:liqo-tenant-south:lease-1";

#[test]
fn a_pod_on_a_remapped_donor_is_shown_at_its_address_here() {
    assert_eq!(reviewed("pods", KUBELET, &pod("10.244.3.4")), pod("100.64.3.4"));
    // A second review, an address of neither, a pod without one, and the writers of others change nothing.
    for (writer, address) in [
        (KUBELET, "100.64.3.4"),
        (KUBELET, "192.0.2.1"),
        (KUBELET, ""),
        ("system:serviceaccount:liqo-tenant-southern:lease-1", "10.244.3.4"),
        ("system:serviceaccount:liqo-tenant-north:lease-1", "10.244.3.4"),
        ("system:node:worker", "10.244.3.4"),
    ] {
        assert_eq!(reviewed("pods", writer, &pod(address)), pod(address), "{writer} {address}");
    }
}

#[test]
fn reviews_of_addresses() {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": "s", "labels": { SLICE_ORIGIN_LABEL: "north" } },
        "endpoints": [{ "addresses": ["10.244.1.2", "192.0.2.1"] }, {}], "addressType": "IPv4",
    });
    let valid = [review("pods", KUBELET, &pod("10.244.3.4")), review("endpointslices", "a", &slice)];
    let peers = peers();
    fuzz!("address_review", valid.map(String::into_bytes).to_vec(), move |bytes: &[u8]| {
        let Ok(answered) = answer(bytes, &peers) else { return false };
        let response = answered.response.expect("an answer");
        assert!(response.allowed, "every object is admitted");
        if let Some(patch) = response.patch {
            let patch: json_patch::Patch = serde_json::from_slice(&patch).expect("a JSON patch");
            let sent: AdmissionReview<DynamicObject> = serde_json::from_slice(bytes).expect("it was answered");
            let object = sent.request.and_then(|request| request.object);
            let mut object = serde_json::to_value(object).expect("JSON");
            let applied = json_patch::patch(&mut object, &patch);
            assert!(applied.is_ok(), "the API server would refuse {patch:?}: {applied:?}");
        }
        true
    });
}

#[test]
fn endpoints_of_a_remapped_origin_have_their_addresses_here() {
    let slice = |origin: &str, addresses: [&str; 3]| {
        let labels = json!({ SLICE_MANAGER_LABEL: SLICE_MANAGER, SLICE_ORIGIN_LABEL: origin });
        let [first, second, third] = addresses;
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": { "name": "s", "labels": labels },
            "endpoints": [{ "addresses": [first, second] }, { "addresses": [third] }], "addressType": "IPv4",
        })
    };
    let written = ["10.244.1.2", "192.0.2.1", "10.244.1.3"];
    let manager = "system:serviceaccount:liqo:liqo-controller-manager";
    let wanted = slice("north", ["100.65.1.2", "192.0.2.1", "100.65.1.3"]);
    assert_eq!(reviewed("endpointslices", manager, &slice("north", written)), wanted);
    for origin in ["south", "east", ""] {
        assert_eq!(reviewed("endpointslices", manager, &slice(origin, written)), slice(origin, written));
    }
}

#[test]
fn only_what_liqo_writes_for_other_clusters_depends_on_the_agent() {
    let registration = remapped_addresses_registration();
    let [pods, endpoints] = &registration.webhooks[..] else { panic!("{registration:?}") };
    assert_eq!((&pods["failurePolicy"], &endpoints["failurePolicy"]), (&json!("Fail"), &json!("Fail")));
    assert_eq!(
        pods["matchConditions"][0]["expression"],
        "request.userInfo.username.startsWith('system:serviceaccount:liqo-tenant-')"
    );
    let selector = &endpoints["objectSelector"];
    assert_eq!(selector["matchLabels"], json!({ SLICE_MANAGER_LABEL: SLICE_MANAGER }));
    assert_eq!(selector["matchExpressions"], json!([{ "key": SLICE_ORIGIN_LABEL, "operator": "Exists" }]));
}
