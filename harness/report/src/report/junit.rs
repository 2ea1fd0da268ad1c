//! JUnit XML: a suite per document, a case per check.

use super::origin::ended;
use super::{Check, Fate, Screen, Told};
use crate::shown::shown;
use anyhow::Result;
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};
use std::io;

/// The whole file.
pub(super) fn render(told: &[&dyn Told], absent: &[String]) -> Result<String> {
    let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
    writer.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    let screens: Vec<Screen> = told.iter().map(|t| as_it_ended(t.screen(false))).collect();
    // A run that should be there and is not.
    let missing = |what: &String| Check::new("batch", "every run is there", Fate::Error(what.clone()));
    let absent: Vec<Check> = absent.iter().map(missing).collect();
    let all = screens.iter().flat_map(|s| &s.checks).chain(&absent);
    let seconds = screens.iter().map(|s| s.seconds).sum();
    counted(&mut writer, "testsuites", "qdiff", all, seconds, |w| {
        screens.iter().try_for_each(|screen| suite(w, screen))?;
        if absent.is_empty() {
            return Ok(());
        }
        counted(w, "testsuite", "batch", absent.iter(), 0.0, |w| absent.iter().try_for_each(|c| case(w, c)))
    })?;
    Ok(String::from_utf8(writer.into_inner())? + "\n")
}

/// A screen whose checks come to what it says: where it is no match and no check shows that, one more does.
fn as_it_ended(mut screen: Screen) -> Screen {
    let fate = match ended(screen.outcome, screen.line()) {
        // Most CI systems pass what was skipped.
        Fate::Skipped(message) => Fate::Failed { kind: "incomplete", message },
        fate => fate,
    };
    let shown = screen.checks.iter().any(|check| matches!(check.fate, Fate::Failed { .. } | Fate::Error(_)));
    if !shown && !matches!(fate, Fate::Passed(_)) {
        screen.checks.push(Check::new("verdict", screen.word, fate));
    }
    screen
}

type Xml = Writer<Vec<u8>>;

/// An element with a name and how many checks in it came out how.
fn counted<'a>(
    w: &mut Xml, tag: &str, name: &str, checks: impl Iterator<Item = &'a Check>, seconds: f64,
    inside: impl FnOnce(&mut Xml) -> io::Result<()>,
) -> io::Result<()> {
    let [mut tests, mut failures, mut errors, mut skipped] = [0; 4];
    for check in checks {
        tests += 1;
        match check.fate {
            Fate::Passed(_) => {}
            Fate::Failed { .. } => failures += 1,
            Fate::Error(_) => errors += 1,
            Fate::Skipped(_) => skipped += 1,
        }
    }
    let counts = [("tests", tests), ("failures", failures), ("errors", errors), ("skipped", skipped)];
    let counts = counts.map(|(key, n): (_, usize)| (key, n.to_string()));
    let time = time(seconds);
    w.create_element(tag)
        .with_attribute(("name", shown(name).as_str()))
        .with_attributes(counts.iter().chain(&time).map(|(k, v)| (*k, v.as_str())))
        .write_inner_content(inside)?;
    Ok(())
}

fn suite(w: &mut Xml, screen: &Screen) -> io::Result<()> {
    counted(w, "testsuite", &screen.title, screen.checks.iter(), screen.seconds, |w| {
        w.create_element("properties").write_inner_content(|w| {
            let lines = screen.lines().map(|(label, text)| (*label, text.as_str()));
            let verdict = screen.line();
            let whole = [("verdict", verdict.as_str()), ("command", screen.repeat.as_str())];
            for (name, value) in lines.chain(whole).filter(|(_, value)| !value.is_empty()) {
                w.create_element("property")
                    .with_attribute(("name", name))
                    .with_attribute(("value", shown(value).as_str()))
                    .write_empty()?;
            }
            Ok(())
        })?;
        screen.checks.iter().try_for_each(|c| case(w, c))?;
        said(w, &screen.line())
    })
}

fn said(w: &mut Xml, text: &str) -> io::Result<()> {
    w.create_element("system-out").write_text_content(BytesText::new(&shown(text)))?;
    Ok(())
}

/// A time that nobody took is left out.
fn time(seconds: f64) -> Option<(&'static str, String)> {
    (seconds > 0.0).then(|| ("time", format!("{seconds:.3}")))
}

fn case(w: &mut Xml, check: &Check) -> io::Result<()> {
    let element = w
        .create_element("testcase")
        .with_attribute(("name", shown(&check.name).as_str()))
        .with_attribute(("classname", shown(&check.class).as_str()))
        .with_attributes(time(check.seconds).iter().map(|(k, v)| (*k, v.as_str())));
    let (tag, kind, message) = match &check.fate {
        Fate::Passed(words) if words.is_empty() => return element.write_empty().map(drop),
        Fate::Passed(words) => return element.write_inner_content(|w| said(w, words)).map(drop),
        Fate::Failed { kind, message } => ("failure", Some(*kind), message),
        Fate::Error(message) => ("error", Some("in-doubt"), message),
        Fate::Skipped(message) => ("skipped", None, message),
    };
    let message = shown(message);
    let attributes = [("message", message.as_str())].into_iter().chain(kind.map(|kind| ("type", kind)));
    let inside = |w: &mut Xml| w.create_element(tag).with_attributes(attributes).write_empty().map(drop);
    element.write_inner_content(inside).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;

    #[test]
    fn a_suite_is_not_all_green_where_the_outcome_is_no_match() {
        let passed = || Check::new("model", "weights", Fate::Passed(String::new()));
        let skipped = || Check::new("L00", "q_proj", Fate::Skipped("not captured".to_owned()));
        for (outcome, failures, errors) in [
            (Outcome::Match, 0, 0),
            (Outcome::Diverged, 1, 0),
            (Outcome::ReferenceSuspect, 1, 0),
            (Outcome::OracleSuspect, 0, 1),
            // Unjudged stages are no pass, also where each one is marked as skipped.
            (Outcome::Incomplete, 1, 0),
        ] {
            let screen = Screen { checks: vec![passed(), skipped()], ..Screen::new("a run", outcome, "so it is") };
            let once = as_it_ended(screen);
            let checks = once.checks.len();
            let twice = as_it_ended(once);
            assert_eq!(twice.checks.len(), checks, "{outcome:?}: what shows it already is enough");
            let count = |pick: fn(&Fate) -> bool| twice.checks.iter().filter(|c| pick(&c.fate)).count();
            assert_eq!(count(|f| matches!(f, Fate::Failed { .. })), failures, "{outcome:?}");
            assert_eq!(count(|f| matches!(f, Fate::Error(_))), errors, "{outcome:?}");
        }
    }
}
