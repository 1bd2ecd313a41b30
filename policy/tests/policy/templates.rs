//! Request templates: what they set, who is offered them, and what is wrong with one.

use std::path::Path;

use comity_policy::{
    Bundle, ProblemCode, SourceFile, TemplateAmount, TemplateField, TemplateShare, load, read_directory,
};

fn examples() -> Vec<SourceFile> {
    read_directory(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap()
}

/// The examples with one more template.
fn with(spec: &str) -> Result<Bundle, Vec<comity_policy::Problem>> {
    let mut files = examples();
    let text =
        format!("apiVersion: policy.comity.dev/v1\nkind: RequestTemplate\nmetadata: {{name: mine}}\nspec: {spec}\n");
    files.push(SourceFile { path: "mine.yaml".to_owned(), text });
    load(files)
}

#[test]
fn a_template_sets_fields_and_is_offered_to_some() {
    let bundle = load(examples()).unwrap();
    let template = &bundle.templates["fine-tuning"].spec;
    let amount = TemplateAmount { count: 4, share: TemplateShare::Whole };
    assert_eq!((template.request.class(), &template.request.gpus.amount), (Some("frontier"), &Some(amount)));
    assert_eq!(
        template.may_override.iter().map(|field| field.as_str()).collect::<Vec<_>>(),
        ["gpus.amount", "duration"]
    );
    assert!(
        template.request.topology.same_node
            && template.request.sets(TemplateField::Preemptible)
            && !template.request.sets(TemplateField::Members)
    );
    let names = |tenant: &str| -> Vec<&str> {
        bundle.templates_offered_to(tenant).map(|template| template.name.as_str()).collect()
    };
    assert_eq!(names("poly-ml"), ["fine-tuning", "notebook-small"]);
    assert_eq!(names("poly-courses"), ["course-session"]);
    assert_eq!(names("hospital-imaging"), ["fine-tuning"]);
    assert_eq!(names("nobody"), [""; 0]);
    // Without `offeredTo`, everybody is.
    let open = with("{title: Mine, request: {gpus: {class: teaching}}}").unwrap();
    assert_eq!(open.templates_offered_to("hospital-imaging").count(), 2);
    assert_eq!(open.templates_offered_to("nobody").count(), 0);
}

#[test]
fn shares_are_written_as_in_request_files() {
    let amount = |gpus: &str| with(&format!("{{title: T, request: {{gpus: {{class: teaching, {gpus}}}}}}}")).unwrap();
    let of = |gpus: &str| amount(gpus).templates["mine"].spec.request.gpus.amount.clone().unwrap();
    let share = |count, share| TemplateAmount { count, share };
    assert_eq!(of("amount: 4x0.25"), share(4, TemplateShare::Milli(250)));
    assert_eq!(of("amount: 2, mig: 1g.10gb"), share(2, TemplateShare::MigProfile("1g.10gb".to_owned())));
    assert_eq!(of("memory: 10Gi"), share(1, TemplateShare::MemoryMib(10_240)));
    assert_eq!(amount("isolation: memory").templates["mine"].spec.request.gpus.amount, None);
}

#[test]
fn what_nobody_could_request_is_refused_with_field_and_remedy() {
    let gpus = "gpus: {class: teaching}";
    for (spec, code, words) in [
        (format!("{{request: {{{gpus}}}}}"), ProblemCode::MissingField, "title"),
        (format!("{{title: \"\", request: {{{gpus}}}}}"), ProblemCode::MissingField, "title"),
        (format!("{{title: {}, request: {{{gpus}}}}}", "x".repeat(61)), ProblemCode::TooLarge, "at most 60 characters"),
        (
            format!("{{title: T, description: {}, request: {{{gpus}}}}}", "x".repeat(257)),
            ProblemCode::TooLarge,
            "at most 256 characters",
        ),
        ("{title: T}".to_owned(), ProblemCode::MissingField, "request"),
        ("{title: T, request: {duration: 1h}}".to_owned(), ProblemCode::MissingField, "request.gpus"),
        ("{title: T, request: {gpus: {amount: 1}}}".to_owned(), ProblemCode::MissingField, "names no GPUs"),
        (
            "{title: T, request: {gpus: {class: teaching, selector: 'device.memoryMiB > 1'}}}".to_owned(),
            ProblemCode::Contradiction,
            "keep one of the two",
        ),
        ("{title: T, request: {gpus: {class: teachin}}}".to_owned(), ProblemCode::UnknownReference, "`teaching`"),
        (
            "{title: T, request: {gpus: {selector: 'device.memory > 1'}}}".to_owned(),
            ProblemCode::CelUnknownName,
            "memory",
        ),
        (
            "{title: T, request: {gpus: {class: teaching, amount: 2.5}}}".to_owned(),
            ProblemCode::InvalidQuantity,
            "4x0.25",
        ),
        ("{title: T, request: {gpus: {class: teaching, mig: large}}}".to_owned(), ProblemCode::InvalidValue, "1g.10gb"),
        (
            "{title: T, request: {gpus: {class: teaching, mig: 1g.10gb, memory: 1Gi}}}".to_owned(),
            ProblemCode::Contradiction,
            "mig",
        ),
        (
            "{title: T, request: {gpus: {class: teaching, amount: 0.5, memory: 1Gi}}}".to_owned(),
            ProblemCode::Contradiction,
            "whole number of shares",
        ),
        (format!("{{title: T, request: {{{gpus}, priority: urgnt}}}}"), ProblemCode::UnknownReference, "`urgent`"),
        (format!("{{title: T, request: {{{gpus}, duration: 5s}}}}"), ProblemCode::InvalidDuration, "10s to 90d"),
        (format!("{{title: T, request: {{{gpus}, duration: 30d}}}}"), ProblemCode::Contradiction, "write at most 7d"),
        (
            "{title: T, request: {gpus: {class: teaching, amount: 65}}}".to_owned(),
            ProblemCode::Contradiction,
            "ask for at most 64",
        ),
        (
            "{title: T, request: {gpus: {class: teaching, amount: 8}, members: 9-16}}".to_owned(),
            ProblemCode::Contradiction,
            "128 GPUs",
        ),
        (
            "{title: T, request: {gpus: {class: teaching, amount: 8}, members: 2-16}}".to_owned(),
            ProblemCode::Contradiction,
            "128 GPUs, more than `limits.maxGpusPerRequest`",
        ),
        (
            "{title: T, request: {gpus: {class: teaching, cpuPerGpu: 0}}}".to_owned(),
            ProblemCode::InvalidQuantity,
            "write more than zero",
        ),
        (
            "{title: T, request: {gpus: {class: teaching, memoryPerGpu: 2097152Ti}}}".to_owned(),
            ProblemCode::InvalidQuantity,
            "write a smaller amount",
        ),
        (format!("{{title: T, request: {{{gpus}, members: 8-2}}}}"), ProblemCode::InvalidQuantity, "2-8"),
        (format!("{{title: T, request: {{{gpus}, spreadDonors: true}}}}"), ProblemCode::Contradiction, "members"),
        (
            format!("{{title: T, request: {{{gpus}, topology: {{sameNode: true, spreadNodes: true}}}}}}"),
            ProblemCode::Contradiction,
            "spreadNodes",
        ),
        (
            format!("{{title: T, request: {{{gpus}, topology: {{numa: aligned}}}}}}"),
            ProblemCode::Contradiction,
            "cpuPerGpu",
        ),
        (
            format!("{{title: T, request: {{{gpus}, preemptible: {{sameGpuType: true}}}}}}"),
            ProblemCode::Contradiction,
            "checkpoint",
        ),
        (
            format!("{{title: T, request: {{{gpus}, data: [{{dataset: a b, size: 1Gi}}]}}}}"),
            ProblemCode::InvalidName,
            "imagenet-1k",
        ),
        (
            format!("{{title: T, request: {{{gpus}, duration: 1h}}, mayOverride: [duraton]}}"),
            ProblemCode::InvalidValue,
            "did you mean `duration`?",
        ),
        (
            format!("{{title: T, request: {{{gpus}}}, mayOverride: [duration]}}"),
            ProblemCode::Contradiction,
            "a request may set that field anyway",
        ),
        (
            format!(
                "{{title: T, request: {{{gpus}, topology: {{sameNode: true}}}}, mayOverride: [topology.sameNode]}}"
            ),
            ProblemCode::InvalidValue,
            "to leave `topology.sameNode` to requests, remove it from `request`",
        ),
        (format!("{{title: T, request: {{{gpus}, tenant: poly-ml}}}}"), ProblemCode::UnknownField, "tenant"),
        (
            format!("{{title: T, request: {{{gpus}, priority: urgent}}}}"),
            ProblemCode::Contradiction,
            "may not use PriorityClass `urgent`",
        ),
        (format!("{{title: T, request: {{{gpus}}}, offeredTo: {{}}}}"), ProblemCode::MissingField, "names nobody"),
    ] {
        let problems = with(&spec).expect_err(&spec);
        let found = problems.iter().find(|problem| {
            problem.code == code && (problem.message.contains(words) || problem.remedy.contains(words))
        });
        assert!(found.is_some() && problems.len() == 1, "{spec}: {code} with {words:?} is not in {problems:#?}");
        assert_eq!(found.map(|problem| problem.file.as_str()), Some("mine.yaml"));
    }
}

#[test]
fn a_template_of_no_use_to_those_who_are_offered_it_is_warned_of() {
    let warned = |spec: &str| -> Vec<String> {
        with(spec)
            .unwrap()
            .warnings()
            .into_iter()
            .map(|it| format!("{} {} {}", it.code, it.message, it.remedy))
            .collect()
    };
    let none = warned("{title: T, request: {gpus: {class: teaching}}, offeredTo: {tenants: [poly-courses, poly-ml]}}");
    assert_eq!(none, [""; 0]);
    let found = warned("{title: T, request: {gpus: {class: frontier}}, offeredTo: {tenants: [poly-courses]}}");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("template-of-no-use ") && found[0].contains("class `frontier`"), "{found:?}");
}

#[test]
fn a_bundle_has_a_bounded_number_of_templates() {
    let mut files = examples();
    let one = |number: usize| {
        format!(
            "apiVersion: policy.comity.dev/v1\nkind: RequestTemplate\nmetadata: {{name: t{number}}}\n\
             spec: {{title: T, request: {{gpus: {{class: teaching}}}}}}\n"
        )
    };
    let many: Vec<String> = (0..comity_policy::limits::MAX_TEMPLATES).map(one).collect();
    files.push(SourceFile { path: "many.yaml".to_owned(), text: many.join("---\n") });
    let problems = load(files).unwrap_err();
    assert!(problems[0].code == ProblemCode::TooLarge && problems[0].message.contains("at most 256"), "{problems:#?}");
}
