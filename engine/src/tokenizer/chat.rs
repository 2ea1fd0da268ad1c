//! A model's chat template: Jinja, as `transformers` renders it.
//!
//! A template is part of the file, and a file may come from anywhere. What it can do is bounded: it reads nothing but
//! the values below (there is no loader, so nothing can be included or imported), it may run
//! [`FUEL`] instructions and print [`MAX_OUTPUT`] bytes. Memory within one
//! instruction is not bounded here: `qdiff` renders in a process of its own,
//! whose memory and time the system bounds (`harness/oracle/src/chat.rs`).

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Instructions that a template may run; Qwen's takes a few hundred.
pub const FUEL: u64 = 1_000_000;
/// Bytes that a template may print besides its messages.
pub const MAX_OUTPUT: usize = 4 << 20;
/// Bytes that a template may be long.
pub const MAX_SOURCE: usize = 1 << 20;
/// Depth of macros, recursive loops and nested blocks.
const MAX_DEPTH: usize = 64;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text of the turn.
    pub content: String,
}

impl Message {
    /// A turn of `role`.
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: content.to_owned() }
    }
}

/// A conversation to be rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    /// The turns, in order.
    pub messages: Vec<Message>,
    /// Text of the token before every text, empty if there is none.
    pub bos_token: String,
    /// Text of the token after every text, empty if there is none.
    pub eos_token: String,
}

/// The turns in ChatML, up to where the assistant answers: Qwen's form without
/// any template, which would add a system prompt of its own.
pub fn chatml(messages: &[Message]) -> String {
    let mut text = String::new();
    for m in messages {
        text.push_str(&format!("<|im_start|>{}\n{}<|im_end|>\n", m.role, m.content));
    }
    text.push_str("<|im_start|>assistant\n");
    text
}

/// Why a template was refused or failed, in one line.
#[derive(Debug, thiserror::Error)]
#[error("the chat template {problem}; use --template bare or --raw")]
pub struct TemplateError {
    problem: String,
}

impl TemplateError {
    /// An error of the template with this predicate.
    pub fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into() }
    }

    fn of(error: &Error) -> Self {
        let line = error.line().map_or(String::new(), |l| format!(" in line {l}"));
        let said = match error.kind() {
            ErrorKind::OutOfFuel => format!("runs for more than {FUEL} instructions"),
            ErrorKind::WriteFailure => format!("prints more than {MAX_OUTPUT} bytes"),
            kind => format!("fails{line}: {}", error.detail().map_or(kind.to_string(), str::to_owned)),
        };
        // The detail may quote the template.
        Self::new(said.replace(char::is_control, " "))
    }
}

/// Renders `conversation` with the Jinja template `source`, up to where the assistant answers.
///
/// # Errors
/// [`TemplateError`] if the template is invalid, raises an exception, or goes
/// beyond a limit.
pub fn render(source: &str, conversation: &Conversation) -> Result<String, TemplateError> {
    if source.len() > MAX_SOURCE {
        return Err(TemplateError::new(format!("is longer than {MAX_SOURCE} bytes")));
    }
    let environment = environment();
    let template = environment.template_from_str(source).map_err(|e| TemplateError::of(&e))?;
    let said: usize = conversation.messages.iter().map(|m| m.content.len()).sum();
    let mut output = Output { text: Vec::new(), left: MAX_OUTPUT + said };
    let context = minijinja::context! {
        messages => Serde(&conversation.messages),
        bos_token => conversation.bos_token.as_str(),
        eos_token => conversation.eos_token.as_str(),
        add_generation_prompt => true,
    };
    // A bug of the template engine is no end of ours: 3.0.5 had one that fuzzing found, `x[1:0][::-1]`.
    let rendering = AssertUnwindSafe(|| template.render_captured_to(context, &mut output).map(drop));
    catch_unwind(rendering)
        .map_err(|_| TemplateError::new("is one that the template engine, minijinja, cannot render: a bug of its own"))?
        .map_err(|e| TemplateError::of(&e))?;
    String::from_utf8(output.text).map_err(|_| TemplateError::new("prints what is not UTF-8"))
}

/// Jinja as `transformers` sets it up.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MAX_DEPTH);
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    // Fails only for delimiters, which are left as they are.
    if let Ok(syntax) = syntax.build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", to_json);
    environment
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// The date and time in UTC.
fn strftime_now(format: &str) -> Result<String, Error> {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    let text = jiff::fmt::strtime::format(format, &now);
    text.map_err(|e| Error::new(ErrorKind::InvalidOperation, e.to_string()))
}

/// JSON as Python's `json.dumps(…, ensure_ascii=False)` writes it.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let mut out = Vec::new();
    let written = match indent {
        Some(n) => {
            let indent = " ".repeat(n.min(16));
            let style = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, style))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Python)),
    };
    written.map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    String::from_utf8(out).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// A space behind each comma and colon.
struct Python;

impl Formatter for Python {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// Takes so much and no more.
struct Output {
    text: Vec<u8>,
    left: usize,
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Conversation, Message, render};

    fn say(source: &str) -> Result<String, String> {
        let conversation = Conversation {
            messages: vec![Message::new("user", "Hi <there>")],
            bos_token: String::new(),
            eos_token: "<|im_end|>".into(),
        };
        render(source, &conversation).map_err(|e| e.to_string())
    }

    #[test]
    fn python_is_understood() {
        let text = say("{%- set s = '  a,b ' %}{{ s.strip().split(',')[1].upper() }}|{{ 'xay'.startswith('xa') }}|\
             {{ {'k': ['<é>', 1, none]} | tojson }}|{% for m in messages %}{{ m['content'] | trim }}{{ m.get('x', '-') }}{% endfor %}|\
             {% set ns = namespace(n=0) %}{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}|\
             {{ strftime_now('%Y') | length }}|{{ eos_token }}{{ tools is defined }}");
        assert_eq!(text.unwrap(), "B|True|{\"k\": [\"<é>\", 1, null]}|Hi <there>-|3|4|<|im_end|>False");
    }

    #[test]
    fn an_exception_is_told() {
        let why = say("{{ raise_exception('only\\nusers') }}").unwrap_err();
        assert_eq!(why, "the chat template fails in line 1: only users; use --template bare or --raw");
    }

    #[test]
    fn hostile_templates_end() {
        let endless = [
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "{% for a in range(1000000000) %}{% endfor %}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "{% block b %}{{ self.b() }}{% endblock %}",
            "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
            "{{ 'x' * 99999999 }}",
            "{{ 'x' * 999999999999 }}",
            "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
        ];
        for source in endless {
            assert!(say(source).is_err(), "{source}");
        }
        let nested = format!("{}1{}", "(".repeat(100_000), ")".repeat(100_000));
        assert!(say(&format!("{{{{ {nested} }}}}")).is_err());
        let blocks = "{% if true %}".repeat(10_000);
        assert!(say(&blocks).is_err());
        assert!(say(&"x".repeat(super::MAX_SOURCE + 1)).is_err());
    }

    /// Found by fuzzing.
    #[test]
    fn a_step_backwards_through_nothing_gives_nothing() {
        assert_eq!(say("{{ nothing[82:-0][::-3] }}").as_deref(), Ok("[]"));
        assert_eq!(say("{{ [1, 2, 3][::-1] | tojson }}").as_deref(), Ok("[3, 2, 1]"));
    }

    #[test]
    fn nothing_can_be_read() {
        for source in [
            "{% include '/etc/passwd' %}",
            "{% import '/etc/passwd' as p %}",
            "{% from '/etc/passwd' import p %}",
            "{% extends '/etc/passwd' %}",
            "{{ open('/etc/passwd').read() }}",
            "{{ ''.__class__.__mro__ }}",
            "{{ cycler.__init__.__globals__.os }}",
            "{{ env.PATH.x }}",
        ] {
            let said = say(source);
            assert!(said.as_ref().map_or(true, |t| t.is_empty()), "{source}: {said:?}");
        }
    }
}
