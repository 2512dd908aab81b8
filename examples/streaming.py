"""Drive the engine step by step: print text as it grows, add a request while others run, and abort one."""

from thalweg.engine import LLM, SamplingParams


def main() -> None:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with LLM(max_model_len=256) as llm:
        engine = llm.engine
        engine.add_request("first", "for key, value in ", params)
        shown: dict[str, int] = {}
        num_steps = 0
        while engine.has_unfinished():
            for output in engine.step():  # cumulative, and only requests that changed
                completion = output.outputs[0]
                begin = shown.get(output.request_id, 0)
                if len(completion.text) > begin or output.finished:
                    print(f"{output.request_id:6} {completion.text[begin:]!r}", completion.finish_reason or "")
                shown[output.request_id] = len(completion.text)
            num_steps += 1
            if num_steps == 5:
                engine.add_request("second", "def main(", params)
            if num_steps == 15:
                engine.abort_request("second")


if __name__ == "__main__":
    main()
