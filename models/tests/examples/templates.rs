//! Chat templates of the example `generate`, in the style of published models.

use crate::chat::Template;
use crate::weights;
use candle::quantized::gguf_file::{Content, Value, VersionedMagic};
use std::collections::HashMap;

fn template(text: &str) -> Template {
    Template { text: text.into(), bos_token: "<s>".into(), eos_token: "</s>".into() }
}

/// Blocks have lines of their own, which leave nothing behind.
#[test]
fn lines_of_blocks_leave_nothing() {
    let text = "{% for message in messages %}\n    {% if message.role == 'user' %}\nQ: {{ message.content }}\n    {% endif %}\n{% endfor %}\nA:";
    assert_eq!(template(text).first_turn("2 + 2?").unwrap(), "Q: 2 + 2?\nA:");
}

/// Headers, a date, a system message that is taken from the list, `trim` before `+`.
#[test]
fn in_the_style_of_llama_3() {
    let text = r#"{{- bos_token }}
{%- if not today is defined %}
    {%- if strftime_now is defined %}
        {%- set today = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set today = "01 Jan 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start|>system<|end|>\n\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Today: " + today + "\n\n" }}
{{- system }}
{{- "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start|>' + message['role'] + '<|end|>\n\n' + message['content'] | trim + '<|eot|>' }}
    {%- elif message.tool_calls | length != 1 %}
        {{- raise_exception("one call at a time") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\n\n' }}
{%- endif %}
"#;
    let today = || jiff::Timestamp::now().strftime("%d %b %Y").to_string();
    let expected = |system: &str, today: String| {
        format!("<s><|start|>system<|end|>\n\nToday: {today}\n\n{system}<|eot|><|start|>user<|end|>\n\nHi<|eot|><|start|>assistant<|end|>\n\n")
    };
    let before = today(); // the day may end here
    for (messages, system) in
        [(&[("user", " Hi\n")][..], ""), (&[("system", "Be brief. "), ("user", "Hi")], "Be brief.")]
    {
        let said = template(text).render(messages).unwrap();
        assert!([&before, &today()].map(|today| expected(system, today.clone())).contains(&said), "{said}");
    }
}

/// Branches for tools, a namespace, a list from its end, and methods of Python's strings.
#[test]
fn in_the_style_of_qwen() {
    let text = r#"{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n' }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(searches=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searches and message.role == "user" and not (message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.searches = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- if '</think>' in content and loop.index0 < ns.last %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {{- '\n' + call.name }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"#;
    let first = "<|im_start|>user\nWhat is 2 < 3 & 'x'?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(template(text).first_turn("What is 2 < 3 & 'x'?").unwrap(), first);
    let chat = [("system", "Be brief."), ("user", "Hi"), ("assistant", "<think>hm</think>\n\nHello"), ("user", "Bye")];
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n\
        <|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(template(text).render(&chat).unwrap(), expected);
}

/// Roles that alternate, or an error in the template's words.
#[test]
fn in_the_style_of_mistral() {
    let text = "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
        {{ raise_exception('roles must alternate: user, assistant') }}{% endif %}{% if message['role'] == 'user' %}\
        {{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}\
        {{ message['content'] + eos_token }}{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}";
    assert_eq!(template(text).first_turn("Hi").unwrap(), "<s>[INST] Hi [/INST]");
    let chat = [("user", "Hi"), ("assistant", "Hello"), ("user", "Bye")];
    assert_eq!(template(text).render(&chat).unwrap(), "<s>[INST] Hi [/INST]Hello</s>[INST] Bye [/INST]");
    let error = template(text).render(&[("user", "Hi"), ("user", "Bye")]).unwrap_err().to_string();
    assert!(error.contains("roles must alternate: user, assistant"), "{error}");
    let error = format!("{:#}", template("{{ raise_exception('no questions') }}").first_turn("Hi").unwrap_err());
    assert!(error.contains("no questions") && error.contains("--prompt"), "{error}");
    let error = format!("{:#}", template("{% generation %}").first_turn("Hi").unwrap_err());
    assert!(error.contains("generation") && error.contains("--prompt"), "{error}");
}

#[test]
fn a_folder_has_its_template_in_either_file() {
    let folder = std::env::temp_dir().join(format!("tilegemm-chat-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    let read =
        || Template::of_folder(&folder).map(|template| template.map(|all| [all.text, all.bos_token, all.eos_token]));
    assert_eq!(read().unwrap(), None);
    write("tokenizer_config.json", r#"{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>"}"#);
    assert_eq!(read().unwrap(), None);
    write("tokenizer_config.json", r#"{"chat_template": "one", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}"#);
    assert_eq!(read().unwrap(), Some(["one", "<s>", "</s>"].map(String::from)));
    write(
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "rag", "template": "two"}, {"name": "default", "template": "three"}], "bos_token": null}"#,
    );
    assert_eq!(read().unwrap(), Some(["three", "", ""].map(String::from)));
    write("chat_template.jinja", "four");
    assert_eq!(read().unwrap(), Some(["four", "", ""].map(String::from)));
    write("tokenizer_config.json", "{");
    assert!(read().unwrap_err().to_string().contains("tokenizer_config.json"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_gguf_file_has_its_template_and_tokens() {
    let content = |metadata: &[(&str, Value)]| Content {
        magic: VersionedMagic::GgufV3,
        metadata: metadata.iter().map(|(name, value)| (format!("tokenizer.{name}"), value.clone())).collect(),
        tensor_infos: HashMap::new(),
        tensor_data_offset: 0,
    };
    assert_eq!(Template::of_gguf(&content(&[])), None);
    let tokens = Value::Array(["a", "<s>", "</s>"].map(|token| Value::String(token.into())).to_vec());
    let all = [
        ("chat_template", Value::String("{{ bos_token }}".into())),
        ("ggml.tokens", tokens),
        ("ggml.bos_token_id", Value::U32(1)),
        ("ggml.eos_token_id", Value::U32(2)),
    ];
    assert_eq!(Template::of_gguf(&content(&all)), Some(template("{{ bos_token }}")));
    let without = Template::of_gguf(&content(&all[..2])).unwrap();
    assert_eq!((without.bos_token.as_str(), without.eos_token.as_str()), ("", ""));
}

#[test]
fn smollm2s_own() {
    let path = weights::smollm2();
    let Ok(mut file) = std::fs::File::open(&path) else {
        panic!("there is no model at {}; run `third_party/fetch.sh smollm2`", path.display())
    };
    let template = Template::of_gguf(&Content::read(&mut file).unwrap()).unwrap();
    let system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n";
    let expected = format!("{system}<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(template.first_turn("Hi").unwrap(), expected);
}
