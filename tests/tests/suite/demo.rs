//! `qdiff demo`: a first verdict with nothing but the binary.

use qdiff_tests::empty;

#[test]
fn a_newcomer_sees_a_match_a_fault_and_its_cause() {
    let folder = empty();
    let said = folder.qdiff("demo").exits(0);
    let shown: Vec<&str> = said.stdout.lines().filter(|line| line.starts_with("$ qdiff ")).collect();
    assert_eq!(shown.len(), 3, "{}", said.stdout);
    let at = |text: &str| said.stdout.find(text).unwrap_or_else(|| panic!("no {text:?} in {}", said.stdout));
    assert!(at("MATCH: ") < at("DIVERGED at L01.q_rope"), "{}", said.stdout);
    assert!(said.stdout.contains("here it explains the residual"), "{}", said.stdout);
    for file in ["model.gguf", "right.html", "wrong.html"] {
        assert!(folder.join("qdiff-demo").join(file).is_file(), "{file}");
    }
    // The commands are those that a reader may type.
    for line in &shown[1..] {
        folder.qdiff(&line["$ qdiff ".len()..]).exits(i32::from(line.contains("--inject")));
    }
}

#[test]
fn a_bug_that_is_none_or_changes_nothing_is_trouble() {
    let folder = empty();
    let said = folder.qdiff("demo --inject rope-bass").exits(2);
    assert!(said.stderr.contains("rope-base"), "{}", said.stderr);
    let said = folder.qdiff("demo --inject rope-base:base=1000000").exits(2);
    assert!(said.stderr.contains("changes nothing"), "{}", said.stderr);
    let said = folder.qdiff("demo model/below").exits(0);
    assert!(said.stdout.contains("model/below/wrong.html"), "{}", said.stdout);
}
