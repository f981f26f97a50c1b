/* SPDX-License-Identifier: Apache-2.0 */
/* The script that a command line runs. */
#include "unit.h"

#include "base/check.h"
#include "tool/process.h"

#include <string.h>

/* Words end in a zero byte, as in /proc/PID/cmdline. */
#define LINE(words) words "\0", sizeof(words)

static const struct {
    const char *words;
    size_t bytes;
    const char *script;
} cases[] = {
    {LINE("python3\0train.py"), "train.py"},
    {LINE("/usr/bin/python3.11\0-u\0/home/me/train.py\0--epochs\0"
          "3"),
     "train.py"},
    {LINE("python3.13t\0-X\0dev\0-Wignore\0-W\0error\0-OO\0a/b.py"), "b.py"},
    {LINE("python3\0-m\0torch.distributed.run\0train.py"), "-m torch.distributed.run"},
    {LINE("python3\0-Im\0pytest"), "-m pytest"},
    {LINE("python3\0-mpytest"), "-m pytest"},
    {LINE("python\0--check-hash-based-pycs\0always\0--\0-odd.py"), ""},
    {LINE("python\0--check-hash-based-pycs\0always\0--\0train.py"), "train.py"},
    {LINE("python3\0-c\0import torch\0train.py"), ""},
    {LINE("python3\0-uc\0import torch"), ""},
    {LINE("python3\0-\0train.py"), ""},
    {LINE("python3\0-m"), ""},
    {LINE("python3\0-W"), ""},
    {LINE("python3"), ""},
    {LINE("python3\0"), ""},
    {LINE("pypy3\0train.py"), "train.py"},
    {LINE("julia\0-t\0"
          "4\0run.jl"),
     "run.jl"},
    {LINE("julia\0-e\0using CUDA"), ""},
    {LINE("bash\0-x\0job.sh"), "job.sh"},
    {LINE("julia\0-O\0"
          "3\0-g\0"
          "1\0run.jl"),
     "run.jl"},
    {LINE("julia\0--project\0--threads\0"
          "4\0--startup-file=no\0run.jl"),
     "run.jl"},
    {LINE("julia\0--eval=1\0run.jl"), ""},
    {LINE("julia\0-m\0Pkg\0run.jl"), "-m Pkg"},
    {LINE("bash\0--rcfile\0f\0s.sh"), "s.sh"},
    {LINE("bash\0-init-file\0f\0-norc\0--login\0s.sh"), "s.sh"},
    {LINE("bash\0-eou\0pipefail\0+O\0extglob\0+x\0s.sh"), "s.sh"},
    {LINE("bash\0--rcfile"), ""},
    {LINE("bash\0-o"), ""},
    {LINE("bash\0-s\0x"), ""},
    {LINE("bash\0-oc\0pipefail\0true"), ""},
    {LINE("bash\0--not-known\0s.sh"), ""},
    {LINE("node\0--require\0m\0--import=n\0-C\0dev\0app.js"), "app.js"},
    {LINE("node\0--title\0t\0app.js"), ""},
    {LINE("node\0--print\0"
          "1\0app.js"),
     ""},
    {LINE("perl\0-MDBI\0-I\0lib\0s.pl\0data"), "s.pl"},
    {LINE("ruby\0--encoding\0utf-8\0--yjit\0-X\0dir\0app.rb"), "app.rb"},
    {LINE("Rscript\0--vanilla\0run.R"), "run.R"},
    {LINE("python-config\0train.py"), ""},
    {LINE("train\0train.py"), ""},
    {LINE("python3\0\033[2J\xe2\x80\xae\xc3\xa9.py"), "?[2J?\xc3\xa9.py"},
    {LINE(""), ""},
};

TEST(scripts_of_command_lines)
{
    char script[IDENTITY_SCRIPT_BYTES];

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        identity_script(cases[i].words, cases[i].bytes, script);
        assert_string_equal(script, cases[i].script);
    }
}

TEST(a_command_line_that_is_empty_or_cut_off)
{
    char script[IDENTITY_SCRIPT_BYTES], words[] = "python3\0-u\0/a/very/long/path.py";

    identity_script(words, 0, script);
    assert_string_equal(script, "");
    for (size_t bytes = 1; bytes <= sizeof(words); bytes++) {
        char cut[sizeof(words) + 1] = "";
        memcpy(cut, words, bytes); /* a zero byte follows what was read */
        identity_script(cut, bytes, script);
        assert_true(strlen(script) < sizeof("a very long path.py"));
    }
}
