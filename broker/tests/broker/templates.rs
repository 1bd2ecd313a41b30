//! Request templates: who is offered which, what they set, and what becomes of requests made from them.

use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::tls::BrokerChannel;
use tonic::{Code, Status};

use crate::fake_agent::FakeAgent;
use crate::federation::{Federation, assert_refused, detail, examples, identity_of, spec};

/// A request of the machine-learning group that says nothing but its template.
fn from_template(name: &str) -> v1::RequestSpec {
    v1::RequestSpec {
        tenant: "poly-ml".to_owned(),
        origin: "polytech-campus".to_owned(),
        template: name.to_owned(),
        ..v1::RequestSpec::default()
    }
}

fn call(spec: v1::RequestSpec, key: &str) -> v1::SubmitRequestRequest {
    let idempotency_key = key.to_owned();
    v1::SubmitRequestRequest { spec: Some(spec), idempotency_key, queue_anyway: true, dry_run: false }
}

async fn submit(channel: &BrokerChannel, spec: v1::RequestSpec, key: &str) -> Result<v1::Request, Status> {
    let reply = RequestServiceClient::new(channel.clone()).submit_request(call(spec, key)).await?;
    Ok(reply.into_inner().request.unwrap())
}

async fn list(channel: BrokerChannel, tenant: &str) -> Result<Vec<v1::RequestTemplate>, Status> {
    let query = v1::ListRequestTemplatesRequest { tenant: tenant.to_owned(), ..Default::default() };
    Ok(RequestServiceClient::new(channel).list_request_templates(query).await?.into_inner().templates)
}

fn names(templates: Vec<v1::RequestTemplate>) -> Vec<String> {
    templates.into_iter().map(|template| template.name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_see_the_templates_that_their_tenants_are_offered() {
    let federation = Federation::start().await;
    for (user, offered) in [
        ("alice", vec!["fine-tuning", "notebook-small"]),
        ("hana", vec!["fine-tuning", "notebook-small"]),
        ("ivan", vec!["course-session"]),
        ("chen", vec!["fine-tuning"]),
        ("admin", vec!["course-session", "fine-tuning", "notebook-small"]),
    ] {
        assert_eq!(names(list(federation.user(user), "").await.unwrap()), offered, "{user}");
    }
    let campus = federation.channel(&identity_of(&federation.ca(), "polytech-campus"));
    assert_eq!(names(list(campus, "").await.unwrap()), ["course-session", "fine-tuning", "notebook-small"]);
    assert_eq!(names(list(federation.user("admin"), "startup-robots").await.unwrap()), ["notebook-small"]);
    assert_refused(list(federation.user("alice"), "poly-courses").await, Code::NotFound, "tenant", "poly-courses");
    let near = list(federation.user("alice"), "poly-lm").await.unwrap_err();
    assert_eq!(detail(&near).remedy, "did you mean poly-ml?");
    assert_eq!(list(federation.user("mallory"), "").await.unwrap_err().code(), Code::PermissionDenied);

    let template = list(federation.user("alice"), "").await.unwrap().remove(0);
    assert_eq!((template.title.as_str(), template.category.as_str()), ("Fine-tuning, 4 GPUs", "Training"));
    assert_eq!(
        (template.may_override, template.tenants),
        (vec!["gpus.amount".into(), "duration".into()], vec!["poly-ml".to_owned()])
    );
    let set = template.spec.unwrap();
    assert_eq!((set.tenant.as_str(), set.delivery, set.duration_ms), ("", 0, 8 * 3_600_000));
    assert_eq!(set.gpus.map(|gpus| (gpus.class, gpus.count)), Some(("frontier".to_owned(), 4)));

    let mut requests = RequestServiceClient::new(federation.user("admin"));
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let page = Some(v1::PageRequest { size: 2, token });
        let query = v1::ListRequestTemplatesRequest { page, ..Default::default() };
        let reply = requests.list_request_templates(query).await.unwrap().into_inner();
        seen.extend(names(reply.templates));
        token = reply.page.unwrap().next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, ["course-session", "fine-tuning", "notebook-small"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_keeps_what_its_template_set_whatever_becomes_of_the_template() {
    let federation = Federation::start().await;
    federation.join("polytech-campus").await;
    let alice = federation.user("alice");
    let submitted = submit(&alice, from_template("fine-tuning"), "one").await.unwrap();
    let filled = submitted.spec.clone().unwrap();
    let (gpus, topology) = (filled.gpus.clone().unwrap(), filled.topology.unwrap());
    let of_user = gpus.clone();
    assert_eq!((filled.template.as_str(), filled.delivery()), ("fine-tuning", v1::Delivery::Namespace));
    assert_eq!((gpus.class.as_str(), gpus.count, gpus.cpu_milli_per_gpu), ("frontier", 4, 8_000));
    assert_eq!(gpus.share.unwrap().kind, Some(v1::share::Kind::Whole(v1::share::Whole {})));
    assert!(topology.same_node && topology.nvlink() == v1::NvLink::Preferred);
    assert_eq!((filled.duration_ms, filled.priority.as_str()), (8 * 3_600_000, "normal"));
    assert_eq!(filled.preemptible, Some(v1::Preemptible { grace_ms: 600_000, checkpoint: true, same_gpu_type: false }));

    // As the agent asks for a GpuRequest with a template.
    let campus = federation.channel(&identity_of(&federation.ca(), "polytech-campus"));
    let of_agent = submit(&campus, from_template("fine-tuning"), "of-agent").await.unwrap().spec.unwrap();
    assert_eq!((of_agent.gpus, of_agent.duration_ms), (Some(of_user), filled.duration_ms));

    let mut bundle = examples();
    bundle.files.retain(|file| file.path != "templates.yaml");
    let request = v1::ApplyPolicyRequest {
        bundle: Some(bundle),
        idempotency_key: "without".to_owned(),
        ..v1::ApplyPolicyRequest::default()
    };
    PolicyServiceClient::new(federation.user("admin")).apply_policy(request).await.unwrap();
    let get = v1::GetRequestRequest { request: submitted.id.clone(), consistency: 0 };
    let kept = RequestServiceClient::new(alice.clone()).get_request(get).await.unwrap().into_inner().request.unwrap();
    assert_eq!(kept.spec, Some(filled));
    // The key stands for the request; a new one finds no template.
    let repeated = submit(&alice, from_template("fine-tuning"), "one").await.unwrap();
    assert_eq!(repeated.id, submitted.id);
    let other = v1::RequestSpec { note: "other".to_owned(), ..from_template("fine-tuning") };
    assert_eq!(detail(&submit(&alice, other, "one").await.unwrap_err()).code, "idempotency-conflict");
    // A dry run is no submission, whatever its key.
    let dry_run = v1::SubmitRequestRequest { dry_run: true, ..call(from_template("fine-tuning"), "one") };
    let checked = RequestServiceClient::new(alice.clone()).submit_request(dry_run).await;
    assert_refused(checked, Code::NotFound, "spec.template", "fine-tuning");
    let gone = submit(&alice, from_template("fine-tuning"), "two").await;
    assert_refused(gone, Code::NotFound, "spec.template", "fine-tuning");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_a_template_leaves_to_requests_may_differ_from_it() {
    let federation = Federation::start().await;
    federation.join("polytech-campus").await;
    let alice = federation.user("alice");
    let revision = federation.revision().await;
    let gpus = |gpus: v1::GpuDemand| v1::RequestSpec { gpus: Some(gpus), ..from_template("fine-tuning") };
    let of_class = |class: &str| gpus(v1::GpuDemand { class: class.to_owned(), ..Default::default() });
    let topology = v1::Topology { nvlink: v1::NvLink::Required.into(), ..Default::default() };
    let share = |kind: v1::share::Kind| Some(v1::Share { kind: Some(kind) });
    let notebook = v1::GpuDemand { share: share(v1::share::Kind::Milli(250)), count: 2, ..Default::default() };
    let by_memory = v1::GpuDemand { share: share(v1::share::Kind::MemoryMib(10_240)), ..Default::default() };
    let half = v1::GpuDemand { share: share(v1::share::Kind::Milli(500)), ..Default::default() };
    for (bad, field, value) in [
        (of_class("midrange"), "spec.gpus.class", "midrange"),
        (
            gpus(v1::GpuDemand { selector: "device.memoryMiB > 1".to_owned(), ..Default::default() }),
            "spec.gpus.selector",
            "device.memoryMiB > 1",
        ),
        (
            gpus(v1::GpuDemand { cpu_milli_per_gpu: 16_000, ..Default::default() }),
            "spec.gpus.cpu_milli_per_gpu",
            "16000",
        ),
        (
            v1::RequestSpec { topology: Some(topology), ..from_template("fine-tuning") },
            "spec.topology.nvlink",
            "required",
        ),
        (
            v1::RequestSpec { preemptible: Some(v1::Preemptible::default()), ..from_template("fine-tuning") },
            "spec.preemptible",
            "the donor's notice",
        ),
        (v1::RequestSpec { gpus: Some(notebook), ..from_template("notebook-small") }, "spec.gpus.count", "2"),
        (v1::RequestSpec { gpus: Some(by_memory), ..from_template("notebook-small") }, "spec.gpus.share", "10240Mi"),
        (v1::RequestSpec { gpus: Some(half), ..from_template("notebook-small") }, "spec.gpus.share", "0.5 GPU"),
        (
            v1::RequestSpec { release_idle_ms: 60_000, ..from_template("notebook-small") },
            "spec.release_idle_ms",
            "60000",
        ),
    ] {
        let refused = submit(&alice, bad.clone(), "bad").await;
        let told = detail(refused.as_ref().unwrap_err());
        assert!(told.reason.contains("is set by request template `"), "{told:?}");
        assert!(told.remedy.contains("requests may override `") && told.remedy.contains("duration"), "{told:?}");
        assert_refused(refused, Code::InvalidArgument, field, value);
        let quote = v1::QuoteRequestRequest { spec: Some(bad), queue_anyway: true };
        let refused = RequestServiceClient::new(alice.clone()).quote_request(quote).await;
        assert_refused(refused, Code::InvalidArgument, field, value);
    }
    for (name, remedy) in [
        ("fine-tunning", "did you mean fine-tuning?"),
        ("nothing-like-it", "name one of fine-tuning, notebook-small;"),
        ("course-session", "name one of fine-tuning, notebook-small;"),
    ] {
        let refused = submit(&alice, from_template(name), "bad").await;
        assert!(detail(refused.as_ref().unwrap_err()).remedy.starts_with(remedy), "{refused:?}");
        assert_refused(refused, Code::NotFound, "spec.template", name);
    }
    // Whoever may not ask for the tenant learns nothing about its templates.
    for name in ["fine-tuning", "nothing-like-it"] {
        let refused = submit(&federation.user("ivan"), from_template(name), "bad").await;
        assert_refused(refused, Code::PermissionDenied, "spec.tenant", "poly-ml");
    }
    assert_eq!(federation.revision().await, revision, "nothing was submitted");

    let longer = v1::RequestSpec { duration_ms: 86_400_000, note: "thesis".to_owned(), ..of_class("frontier") };
    let filled = submit(&alice, longer, "longer").await.unwrap().spec.unwrap();
    assert_eq!((filled.duration_ms, filled.note.as_str()), (86_400_000, "thesis"));
    let two = submit(&alice, gpus(v1::GpuDemand { count: 2, ..Default::default() }), "two").await.unwrap();
    assert_eq!(two.spec.unwrap().gpus.map(|gpus| (gpus.class, gpus.count)), Some(("frontier".to_owned(), 2)));
    let open = v1::RequestSpec {
        deny_donors: vec!["startup-pc".to_owned()],
        priority: "scavenger".to_owned(),
        ..from_template("notebook-small")
    };
    let filled = submit(&alice, open, "open").await.unwrap().spec.unwrap();
    assert_eq!((filled.priority.as_str(), filled.release_idle_ms), ("scavenger", 1_800_000));
    assert_eq!(filled.gpus.unwrap().share.unwrap().kind, Some(v1::share::Kind::Milli(250)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_is_told_of_templates_that_could_start() {
    let federation = Federation::start().await;
    let (_origin, donor) = (federation.join("polytech-campus").await, federation.join("ncc-main").await);
    let mut at_donor = FakeAgent::connect(&federation, &donor).await.unwrap();
    let mut offer = at_donor.offer(1, 1);
    for device in &mut offer.nodes[0].devices {
        (device.architecture, device.memory_mib) = ("Hopper".to_owned(), 81_559);
    }
    assert_eq!(at_donor.report(Body::Offer(offer)).await.unwrap(), None);
    federation.until_connected("ncc-main").await;
    let mut requests = RequestServiceClient::new(federation.user("alice"));
    // The donor's devices are exclusive: nobody can ever serve a part of one.
    let mut half = spec();
    let gpus = half.gpus.as_mut().unwrap();
    (gpus.class, gpus.share) = ("frontier".to_owned(), Some(v1::Share { kind: Some(v1::share::Kind::Milli(500)) }));
    let submit = v1::SubmitRequestRequest { queue_anyway: false, ..call(half.clone(), "half") };
    let dry_run = v1::SubmitRequestRequest { dry_run: true, ..submit.clone() };
    let waiting = call(half.clone(), "waiting");
    let quote = v1::QuoteRequestRequest { spec: Some(half), queue_anyway: false };
    let alternative = "; or submit from a request template: fine-tuning could start now";
    for status in [
        requests.submit_request(submit).await.unwrap_err(),
        requests.submit_request(dry_run).await.unwrap_err(),
        requests.quote_request(quote.clone()).await.unwrap_err(),
    ] {
        let told = detail(&status);
        assert_eq!(told.code, "unservable");
        assert!(told.remedy.ends_with(alternative), "{}", told.remedy);
    }
    let quote = v1::QuoteRequestRequest { queue_anyway: true, ..quote };
    let quoted = requests.quote_request(quote).await.unwrap().into_inner();
    let told: Vec<(&str, &str)> =
        quoted.alternatives.iter().map(|it| (it.template.as_str(), it.donor.as_str())).collect();
    assert_eq!(told, [("fine-tuning", "ncc-main")]);
    // 64 GPUs are the most that policy allows one request.
    let mut large = spec();
    let gpus = large.gpus.as_mut().unwrap();
    (gpus.class, gpus.count) = ("frontier".to_owned(), 65);
    gpus.share = Some(v1::Share { kind: Some(v1::share::Kind::Whole(v1::share::Whole {})) });
    let submit = v1::SubmitRequestRequest { queue_anyway: false, ..call(large.clone(), "large") };
    let dry_run = v1::SubmitRequestRequest { dry_run: true, ..submit.clone() };
    let quote = v1::QuoteRequestRequest { spec: Some(large), queue_anyway: false };
    for status in [
        requests.submit_request(submit).await.unwrap_err(),
        requests.submit_request(dry_run).await.unwrap_err(),
        requests.quote_request(quote).await.unwrap_err(),
    ] {
        let told = detail(&status);
        assert_eq!((told.code.as_str(), told.field.as_str()), ("policy-denied", "spec.gpus.count"));
        assert!(told.remedy.ends_with(alternative), "{}", told.remedy);
    }
    // So does one that waits all the same.
    let submitted = requests.submit_request(v1::SubmitRequestRequest { queue_anyway: true, ..waiting }).await.unwrap();
    let request = submitted.into_inner().request.unwrap().id;
    let explain = |seek_alternatives| v1::ExplainRequestRequest { request: request.clone(), seek_alternatives };
    let unasked = requests.explain_request(explain(false)).await.unwrap().into_inner();
    assert_eq!(unasked.alternatives, []);
    let explained = requests.explain_request(explain(true)).await.unwrap().into_inner();
    let told: Vec<(&str, &str)> =
        explained.alternatives.iter().map(|it| (it.template.as_str(), it.donor.as_str())).collect();
    assert_eq!(told, [("fine-tuning", "ncc-main")]);
    // A request that is placed needs no alternative.
    let quote = v1::QuoteRequestRequest { spec: Some(from_template("fine-tuning")), queue_anyway: false };
    let quoted = requests.quote_request(quote).await.unwrap().into_inner();
    assert!(quoted.placement.is_some() && quoted.alternatives.is_empty(), "{quoted:?}");
}
