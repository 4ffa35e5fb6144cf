"""Access control: authentication of requests, and the permissions of users.

    signature        HMAC-SHA1 over the ext fields and the body of a request, as Apache's clients sign
    challenge        signatures of version 2, which nobody can use again
    credentials      the keys with which a client signs, from options, files or the environment
    white_addresses  Apache's patterns of addresses that need no signature
    requirements     the rights that an action on a resource needs
    plain_acl        accounts of plain_acl.yml (ACL 1.0), and plain_acl_files: reading, watching and changing the files
    policies         users and policies (ACL 2.0), and user_store: their file
    access_control   authentication and authorization of requests, as an interceptor
    audit_log        a log of administrative and denied requests

Corresponds to the modules `acl` of Apache RocketMQ 4.9.8 and `auth` of 5.3.
"""
